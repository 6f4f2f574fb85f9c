"""Two conversions to one place: one is refused, whatever the timing, and its work is not lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloudload.convert import convert_to_mds
from cloudload.data.storage.locations import Location
from cloudload.errors import CloudloadError, ConvertError
from cloudload.tools.check import check_dataset
from cloudload.tools.convert.conversion_report import ConvertReport
from testkit.conversions import SETTINGS, convert_until, note_each_write, texts, write_lines

ONE = {**SETTINGS, "shard_bytes": 1_500}
SEVERAL = {**ONE, "segment_bytes": 6_000}


def rows(name: str, count: int = 400) -> list[dict[str, str]]:
    return [{"text": f"document {number:03} of {name}"} for number in range(count)]


def write(tmp_path: Path, name: str) -> Path:
    """Write 400 documents. The files of all names have the same size."""
    return write_lines(tmp_path / f"{name}.jsonl", rows(name))


def texts_of(name: str) -> list[str]:
    return [row["text"] for row in rows(name)]


@pytest.mark.parametrize("options", [ONE, SEVERAL])
def test_an_unfinished_conversion_survives_another_one(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    a, b, out = write(tmp_path, "a"), write(tmp_path, "b"), tmp_path / "out"
    convert_until(7, a, out, **options)
    stored = {item.url: item.tag for item in Location(str(out)).list_objects()}
    for other in (ONE, SEVERAL, {**SEVERAL, "worker": "0/2"}):
        with pytest.raises(ConvertError, match=r"belongs to a conversion with|was planned with"):
            convert_to_mds(b, out, **other)
    assert {item.url: item.tag for item in Location(str(out)).list_objects()} == stored
    report = convert_to_mds(a, out, **options)
    assert report.resumed_shards >= 4
    assert texts(str(out), tmp_path) == texts_of("a")


def test_a_forgotten_segment_size_does_not_throw_the_work_away(tmp_path: Path) -> None:
    a, out = write(tmp_path, "a"), tmp_path / "out"
    convert_to_mds(a, out, worker="0/2", **SEVERAL)
    with pytest.raises(ConvertError, match="segment_bytes was 6000 and is now 268435456"):
        convert_to_mds(a, out, **ONE)
    report = convert_to_mds(a, out, **SEVERAL)
    assert report.resumed_shards > 3
    assert texts(str(out), tmp_path) == texts_of("a")


def test_a_conversion_that_failed_before_its_first_shard_does_not_block_the_place(
    tmp_path: Path,
) -> None:
    a, out = write(tmp_path, "a"), tmp_path / "out"
    with pytest.raises(ConvertError, match="has no field 'body'"):
        convert_to_mds(a, out, text_key="body", **ONE)
    convert_to_mds(a, out, **ONE)
    assert texts(str(out), tmp_path) == texts_of("a")


def test_a_conversion_that_runs_is_not_replaced_even_before_its_first_shard(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def first() -> Iterator[dict[str, str]]:
        yield from rows("a", 20)
        with pytest.raises(ConvertError, match="belongs to a conversion with different inputs"):
            convert_to_mds(write(tmp_path, "b"), out, **ONE)
        yield from rows("a")[20:]

    convert_to_mds(first(), out, **ONE)
    assert texts(str(out), tmp_path) == texts_of("a")


@pytest.mark.parametrize("options", [ONE, SEVERAL])
def test_of_two_conversions_at_once_only_the_one_of_the_dataset_succeeds(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    inputs = [write(tmp_path, name) for name in "ab"]
    for turn in range(4):
        out = tmp_path / f"out{turn}"
        with ThreadPoolExecutor(2) as threads:
            running = {
                path.stem: threads.submit(convert_to_mds, path, out, **options) for path in inputs
            }
        errors = {name: each.exception() for name, each in running.items()}
        assert all(error is None or isinstance(error, CloudloadError) for error in errors.values())
        complete = [name for name, error in errors.items() if error is None]
        assert len(complete) == 1
        assert texts(str(out), tmp_path) == texts_of(complete[0])


def test_a_conversion_that_is_overwritten_while_it_runs_stops_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, out = write(tmp_path, "a"), write(tmp_path, "b"), tmp_path / "out"
    others: list[ConvertReport] = []

    def overwrite_once(url: str) -> None:
        if url.endswith("shard.00002.mds.zstd") and not others:
            monkeypatch.undo()
            others.append(convert_to_mds(b, out, overwrite=True, **ONE))

    note_each_write(monkeypatch, overwrite_once)
    with pytest.raises(ConvertError, match=r"was replaced|with different inputs"):
        convert_to_mds(a, out, **ONE)
    assert texts(str(out), tmp_path) == texts_of("b")
    assert check_dataset(str(out), progress=False, processes=1).is_sound


def test_of_two_iterators_at_once_none_replaces_the_shards_of_the_other(tmp_path: Path) -> None:
    """The second begins when the first has stored nothing, and runs to its end."""
    out = tmp_path / "out"

    def first() -> Iterator[dict[str, str]]:
        yield from rows("a", 20)
        convert_to_mds(iter(rows("b")), out, **ONE)
        yield from rows("a")[20:]

    with pytest.raises(ConvertError):
        convert_to_mds(first(), out, **ONE)
    assert texts(str(out), tmp_path) == texts_of("b")


def test_a_complete_dataset_of_other_files_of_the_same_names_and_sizes_is_refused(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    (tmp_path / "two").mkdir()
    source = write(tmp_path / "one", "a")
    convert_to_mds(source, out, **ONE)
    assert convert_to_mds(tmp_path / "one" / "*.jsonl", out, **ONE).already_complete
    other = tmp_path / "two" / "a.jsonl"
    other.write_text(source.read_text().upper().replace('"TEXT"', '"text"'))
    with pytest.raises(ConvertError, match="is not the file from which it was converted"):
        convert_to_mds(other, out, **ONE)
