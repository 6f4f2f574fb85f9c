"""An invalid argument raises an error that names it and says what to use."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cloudload import Retry, convert_to_mds
from cloudload.config import parse_bytes
from cloudload.errors import DatasetError
from testkit.loaders import make_loader


def test_a_text_column_that_is_not_there_is_an_error_before_anything_else(
    larger_folder: str,
) -> None:
    with pytest.raises(
        DatasetError, match=r"has no column 'body'\. Set text_key to one of its text columns: text"
    ):
        make_loader(larger_folder, text_key="body")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"shuffle": "no"}, "shuffle is 'no'"),
        ({"predownload": 0}, "predownload is 0"),
        ({"start_method": "thread"}, "start_method is 'thread'. Use one of None, fork"),
        ({"retry": 5}, "retry is 5"),
        ({"eos": 0.5}, "eos is 0.5"),
        ({"num_workers": True}, "num_workers is True"),
        ({"lengths": "learn"}, "lengths is 'learn', but .* Run cloudload count, and use"),
        (
            {"device_mesh": object(), "dp_rank": 0, "dp_world_size": 1},
            "device_mesh is set, but dp_rank is 0 and dp_world_size is 1. Pass either",
        ),
    ],
)
def test_an_argument_that_makes_no_sense_is_a_value_error_that_names_it(
    larger_folder: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_loader(larger_folder, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"seq_len": 10**9, "batch_size": 1000},
        {"batch_size": 10**9},
        {"prefetch_batches": 10**12, "num_workers": 1},
        {"seq_len": 1 << 40},
    ],
)
def test_batches_beyond_memory_are_refused_before_any_is_allocated(
    larger_folder: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(
        ValueError, match=r"GiB of memory, but this machine has .* Use a smaller seq_len"
    ):
        make_loader(larger_folder, **settings)
    with pytest.raises(
        ValueError, match=r"num_lanes is 1,000,000,000. Use an integer from 1 to 4,194,304"
    ):
        make_loader(larger_folder, num_lanes=10**9)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), True, "20", None])
def test_a_time_that_is_no_number_of_seconds_is_refused_in_all_options_alike(
    larger_folder: str, seconds: Any
) -> None:
    with pytest.raises(ValueError, match=f"^exchange_timeout_s is {seconds!r}. Use a number of s"):
        make_loader(larger_folder, exchange_timeout_s=seconds)
    for name in ("timeout_s", "deadline_s", "pause_s"):
        with pytest.raises(ValueError, match=f"^{name} is {seconds!r}. Use a number of seconds ab"):
            Retry(**{name: seconds})


@pytest.mark.parametrize(
    "url", ["", " ", "s3://", "s3:///larger_folder", "s3:/bucket/larger_folder", "gs:bucket"]
)
def test_a_broken_location_is_refused_not_taken_for_a_folder(url: str) -> None:
    with pytest.raises(ValueError, match=r"empty|has no bucket name|neither a path nor a URL"):
        make_loader(url)
    with pytest.raises(ValueError, match=r"empty|has no bucket name|neither a path nor a URL"):
        convert_to_mds(iter(["a"]), url, processes=1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["Dataset", "IterableDataset", "DatasetDict"])
def test_a_dataset_of_hugging_face_is_answered_with_how_to_convert_it(kind: str) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["a"]})
    data = {
        "Dataset": rows,
        "IterableDataset": rows.to_iterable_dataset(),
        "DatasetDict": datasets.DatasetDict(train=rows),
    }[kind]
    with pytest.raises(ValueError, match=rf"datasets\.{kind}\. .*cloudload\.convert_to_mds\(data"):
        make_loader(data)


# ---------------------------------------------------------------- checks


@pytest.mark.parametrize(
    ("text", "expected"),
    [(5, 5), ("5", 5), ("2kb", 2048), ("1.5GB", 3 << 29), ("64MiB", 64 << 20), ("1t", 1 << 40)],
)
def test_sizes_are_read_as_people_write_them(text: int | str, expected: int) -> None:
    assert parse_bytes(text) == expected
    assert math.isfinite(parse_bytes(text))


@pytest.mark.parametrize("text", ["", "gb", "-5", "5 apples", "1.2.3mb", 0, -1, True, "0.1"])
def test_what_is_no_size_is_refused(text: int | str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)
