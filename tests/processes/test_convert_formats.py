"""Every format gives the same bytes in any number of processes and after any interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudload.convert.convert import convert_to_mds
from cloudload.errors import StoreError
from tests.support.conversions import SETTINGS, dataset_bytes, documents, read_dataset, stop_after
from tests.support.input_kinds import INPUT_KINDS

ROWS = [{"text": f'{text}"\n, é', "n": number} for number, text in enumerate(documents(300))]


@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_every_format_is_read_alike_in_processes_and_after_interruptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source = tmp_path / "in"
    if kind != "mds":  # MDSWriter wants to make the folder
        source.mkdir()
    INPUT_KINDS[kind](source, ROWS)
    options: dict[str, Any] = {**SETTINGS, "keep": ["n:int"]}
    whole = convert_to_mds(source, tmp_path / "whole", **options)
    samples = read_dataset(str(tmp_path / "whole"), tmp_path)
    assert [{"text": sample["text"], "n": sample["n"]} for sample in samples] == ROWS
    for shards in (0, 3, 9):
        stop_after(monkeypatch, shards)
        with pytest.raises(StoreError, match="no room"):
            convert_to_mds(source, tmp_path / "out", **options)
        monkeypatch.undo()
    resumed = convert_to_mds(source, tmp_path / "out", **options)
    assert (resumed.resumed_shards, resumed.input_bytes) == (12, whole.input_bytes)
    convert_to_mds(source, tmp_path / "many", **{**options, "processes": 3})
    expected = dataset_bytes(str(tmp_path / "whole"))
    assert dataset_bytes(str(tmp_path / "out")) == expected
    assert dataset_bytes(str(tmp_path / "many")) == expected
