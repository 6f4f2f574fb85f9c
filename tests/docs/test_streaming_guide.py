"""The guide for users of Streaming has a row for every argument, and each row has a test."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from testkit import ROOT
from tests.promises import test_streaming_arguments as arguments

GUIDE = ROOT / "docs" / "guides" / "from-streaming.md"
TESTED_BY: dict[str, dict[str, Callable[..., None]]] = {
    "StreamingDataset": {
        "streams": arguments.test_a_dataset_is_read_as_often_as_it_reads_itself,
        "epoch_size": arguments.test_a_dataset_is_read_as_often_as_it_reads_itself,
        "remote": arguments.test_remote_and_split_are_the_url,
        "split": arguments.test_remote_and_split_are_the_url,
        "local": arguments.test_local_without_remote_is_the_data_and_otherwise_not_used,
        "partition_algo": arguments.test_the_partition_algorithm_has_no_effect,
        "stream_name": arguments.test_a_registered_class_of_streams_is_adopted_or_refused,
        "stream_config": arguments.test_a_registered_class_of_streams_is_adopted_or_refused,
        **{
            name: arguments.test_a_datasets_setting_becomes_an_option
            for theirs, _ in arguments.SETTINGS
            for name in theirs
        },
        **{
            name: arguments.test_a_setting_without_a_counterpart_is_named_in_a_warning
            for theirs, _ in arguments.WARNINGS
            for name in theirs
        },
    },
    "Stream": {
        "remote": arguments.test_local_without_remote_is_the_data_and_otherwise_not_used,
        "local": arguments.test_local_without_remote_is_the_data_and_otherwise_not_used,
        "proportion": arguments.test_streams_with_proportions_are_read_as_a_dataset_of_them_is,
        "download_retry": arguments.test_the_patience_of_streams_is_kept,
        "download_timeout": arguments.test_the_patience_of_streams_is_kept,
        "validate_hash": arguments.test_a_streams_zipped_files_and_hash_are_cloudloads_matter,
        "keep_zip": arguments.test_a_streams_zipped_files_and_hash_are_cloudloads_matter,
        **{
            name: arguments.test_a_streams_setting_becomes_a_streams_option
            for setting in arguments.STREAM_SETTINGS
            for name in setting
        },
    },
}
"""For each Streaming class: the test that covers each argument in the guide's table. The test's
source names the argument."""


def rows_of_guide(name: str) -> list[str]:
    """List the arguments in the first column of the guide's table for the class `name`."""
    table = GUIDE.read_text("utf-8").split(f"| `{name}` |", 1)[1].split("\n\n", 1)[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [argument for cell in cells for argument in re.findall(r"`(\w+)`", cell)]


@pytest.mark.parametrize("name", TESTED_BY)
def test_the_guide_has_a_tested_row_for_every_argument(name: str) -> None:
    import streaming

    taken = [*inspect.signature(getattr(streaming, name)).parameters]
    assert sorted(rows_of_guide(name)) == sorted(taken)
    assert TESTED_BY[name].keys() == set(taken)
    for argument, test in TESTED_BY[name].items():
        cases = repr(getattr(test, "pytestmark", ""))
        assert argument in inspect.getsource(test) + cases, (
            f"{test.__name__} does not set {argument}"
        )
