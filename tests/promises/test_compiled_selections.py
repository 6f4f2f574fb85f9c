"""`cloudload select` compiles a selection once, on any engine. A loader finds it by its name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import Stream, select_documents
from cloudload.data.selections import files
from cloudload.errors import DatasetError
from cloudload.tools.select.report import SelectReport
from testkit.corpora import random_documents, write_mds
from testkit.counted import count
from testkit.loaders import make_loader
from testkit.parquet_files import write_parquet

SIZE = 180


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GROUP_SAMPLES", 40)


def write(folder: Path, size: int = SIZE, **options: Any) -> str:
    """Write documents in shards of 20, with IDs, scores, languages, and JSON."""
    numbers = range(size)
    extra: dict[str, Any] = {
        "id": ("str", [f"doc-{number}" for number in numbers]),
        "score": ("int", [number % 7 for number in numbers]),
        "rate": ("float32", [number / 10 for number in numbers]),
        "lang": ("str", [("en", "de", "fr")[number % 3] for number in numbers]),
        "meta": ("json", [{"q": number} if number % 4 else None for number in numbers]),
    }
    texts = random_documents(4, size)
    return write_mds(folder, texts, shard_samples=[20] * (size // 20), extra=extra, **options)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return write(tmp_path / "data", compression="zstd")


def select(data: str | Path, name: str = "good", **options: Any) -> SelectReport:
    report = select_documents(data, name, **{"processes": 1, "progress": False, **options})
    assert report is not None
    return report


def read(data: str | Path, tmp_path: Path, name: str = "good", **options: Any) -> set[int]:
    """The samples that a finite run with a selection reads."""
    stream = Stream(str(data), select=name, name="data")
    with make_loader(stream, epochs=1, local=tmp_path / "cache", **options) as loader:
        return {int(row[3]) for batch in loader for row in batch.spans.tolist()}


def bits_of(data: str | Path, name: str = "good") -> dict[str, bytes]:
    folder = Path(data) / "selections" / name
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    ("where", "keeps"),
    [
        ("score >= 3 and lang in ('en', 'de')", lambda n: n % 7 >= 3 and n % 3 < 2),
        ("rate < 1.5 or meta.q = 100", lambda n: n / 10 < 1.5 or (n == 100 and n % 4 > 0)),
        ("meta is null", lambda n: n % 4 == 0),
        ("not (lang <> 'fr') and id <> 'doc-5'", lambda n: n % 3 == 2 and n != 5),
    ],
)
def test_a_run_reads_the_documents_for_which_a_condition_is_true(
    data: str, tmp_path: Path, where: str, keeps: Callable[[int], bool]
) -> None:
    report = select(data, where=where)
    expected = {number for number in range(SIZE) if keeps(number)}
    assert read(data, tmp_path) == expected
    assert (report.samples, report.selected, report.groups) == (SIZE, len(expected), 5)
    assert report.read_shards == len({number // 20 for number in expected})
    assert not report.default


def test_files_have_the_same_bytes_on_any_engine_and_after_a_stop(
    data: str, tmp_path: Path
) -> None:
    select(data, where="score > 2")
    expected = bits_of(data)
    assert len(expected) == 6
    assert select(data, where="score > 2").compiled_groups == 0
    for name in list(expected)[1::2]:  # as if it had been killed
        (Path(data) / "selections" / "good" / name).unlink()
    (Path(data) / "selections" / "good" / files.INDEX_NAME).unlink(missing_ok=True)
    assert 0 < select(data, where="score > 2").compiled_groups < 5
    assert bits_of(data) == expected
    jobs = [
        select_documents(data, "array", where="score > 2", worker=f"{job}/3", progress=False)
        for job in range(3)
    ]
    assert [job is None for job in jobs] == [True, True, False]
    assert bits_of(data, "array") == expected
    other = tmp_path / "other"
    shutil.copytree(data, other, ignore=shutil.ignore_patterns("selections"))
    select(other, where="score > 2", processes=2)
    assert bits_of(other) == expected


@pytest.mark.parametrize("ending", ["txt", "csv", "jsonl"])
def test_documents_are_chosen_by_their_ids(data: str, tmp_path: Path, ending: str) -> None:
    ids = [f"doc-{number}" for number in (3, 77, 160)]
    path = tmp_path / f"ids.{ending}"
    lines = {"txt": ids, "csv": ["id,why", *(f"{each},spam" for each in ids)]}
    lines["jsonl"] = [json.dumps({"id": each}) for each in ids]
    path.write_text("\n".join([*lines[ending], "" if ending == "txt" else lines[ending][-1]]))
    assert not select(data, "few", keep_ids=path).default
    assert read(data, tmp_path, "few") == {3, 77, 160}
    assert select(data, "others", drop_ids=path).default
    assert read(data, tmp_path, "others") == set(range(SIZE)) - {3, 77, 160}
    both = select(data, "both", keep_ids=path, where="score < 5", drop_ids=None)
    assert (both.selected, read(data, tmp_path, "both")) == (
        2,
        {3, 77},
    )


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_id_may_have_any_character_but_a_newline(tmp_path: Path, newline: str) -> None:
    ids = ["plain", "a\u2028b", "a\x85b", "a\x0bb", " first", "last ", "\ufeffmark", "ab"]
    data = write_mds(tmp_path / "data", random_documents(1, 8), extra={"id": ("str", ids)})
    listed = tmp_path / "ids.txt"
    listed.write_bytes(newline.join([*ids[:-1], "", " a ", ""]).encode())
    assert select(data, drop_ids=listed).selected == 1
    assert read(data, tmp_path) == {7}


def test_documents_are_chosen_by_shard_and_index_without_reading_shards(
    data: str, tmp_path: Path
) -> None:
    listed = tmp_path / "listed.csv"
    listed.write_text("shard,index\nshard.00001.mds,3\n8,19\n")
    for path in Path(data).glob("shard*"):
        path.rename(path.with_suffix(".hidden"))
    select(data, "few", keep=listed)
    select(data, "others", drop=listed)
    for path in Path(data).glob("*.hidden"):
        path.rename(path.with_suffix(".zstd"))
    assert read(data, tmp_path, "few") == {23, 179}
    assert read(data, tmp_path, "others") == set(range(SIZE)) - {23, 179}


def test_the_report_says_what_a_sparse_selection_costs(data: str) -> None:
    count(data)
    report = select(data, where="id = 'doc-7' or rate >= 16")
    text = "\n".join(report.describe())
    assert (report.selected, report.read_shards, report.shards) == (21, 2, 9)
    assert "2 of 9 have selected documents" in text
    assert "bytes fetched for each byte of a selected document" in text
    [tokens] = report.tokens
    assert 0 < tokens.selected < tokens.tokens / 4
    assert json.loads(report.to_json())["tokens"][0]["selected"] == tokens.selected


# ---------------------------------------------------------------- data that changed


@pytest.mark.parametrize(
    ("option", "warning"),
    [
        ("keep_ids", "no document is selected. Compare the listed IDs with"),
        ("drop_ids", "no document is left out, so the rule has no effect. Compare the listed IDs"),
    ],
)
def test_ids_that_are_not_in_the_data_are_reported(
    data: str, tmp_path: Path, option: str, warning: str
) -> None:
    (tmp_path / "ids.txt").write_text("document 5\ndocument 6\n")  # the data has doc-5
    ids: dict[str, Any] = {option: tmp_path / "ids.txt"}
    report = select(data, **ids)
    assert warning in "\n".join(report.describe())
    assert select(data, "some", where="score > 2").warning is None


@pytest.mark.parametrize(("options", "is_read"), [({"where": "score < 9"}, False), ({}, True)])
def test_appended_documents_follow_the_default_until_it_is_compiled_again(
    tmp_path: Path, options: dict[str, Any], is_read: bool
) -> None:
    data, ids = write(tmp_path / "data", 100), tmp_path / "ids.txt"
    ids.write_text("doc-1\n")
    rule: dict[str, Any] = options or {"drop_ids": ids}
    select(data, **rule)
    before = bits_of(data)
    settings: dict[str, Any] = {"num_lanes": 6, "local": tmp_path / "cache"}
    loader = make_loader(Stream(data, select="good", name="data"), **settings)
    list(loader.take(2))
    state = loader.state_dict()
    rest = [batch["input_ids"].tolist() for batch in loader.take(5)]
    write(tmp_path / "data", 140)  # the first shards stay the same
    old = set(range(100)) - ({1} if not options else set())
    assert read(data, tmp_path) == (old | set(range(100, 140)) if is_read else old)
    # a run continues on the shards that it began with
    resumed = make_loader(Stream(data, select="good", name="data"), **settings)
    resumed.load_state_dict(state)
    assert [batch["input_ids"].tolist() for batch in resumed.take(5)] == rest
    report = select(data, **rule)
    assert report.compiled_groups == 2  # the last group has more shards now, and one is new
    assert read(data, tmp_path) == old | set(range(100, 140))
    assert before.keys() & bits_of(data).keys() >= {files.INDEX_NAME}
    again = make_loader(Stream(data, select="good", name="data"), **settings)
    again.load_state_dict(state)
    assert [batch["input_ids"].tolist() for batch in again.take(5)] == rest


def test_a_selection_of_other_data_is_refused(data: str, tmp_path: Path) -> None:
    select(data, where="score > 2")
    other = write(tmp_path / "other", 200)
    shutil.copytree(Path(data) / "selections", Path(other) / "selections")
    with pytest.raises(DatasetError, match=r"was compiled for other data than .*/other, because"):
        read(other, tmp_path)


def test_a_name_means_one_rule_until_it_is_replaced(data: str, tmp_path: Path) -> None:
    select(data, where="score > 2")
    old = bits_of(data)
    with pytest.raises(DatasetError, match=r"'good' in .* has another rule \(where 'score > 2'\)"):
        select(data, where="score > 3")
    assert bits_of(data) == old
    select(data, where="score > 3", again=True)
    assert read(data, tmp_path) == {number for number in range(SIZE) if number % 7 > 3}
    assert bits_of(data).keys() & old.keys() == {files.INDEX_NAME}


def test_a_selection_may_be_stored_elsewhere(data: str, tmp_path: Path) -> None:
    report = select(data, where="score > 2", out=tmp_path / "elsewhere")
    assert not (Path(data) / "selections").exists()
    expected = {number for number in range(SIZE) if number % 7 > 2}
    assert read(data, tmp_path, report.location) == expected


def test_the_rows_do_not_depend_on_how_documents_were_chosen(data: str, tmp_path: Path) -> None:
    select(data, where="score > 2")
    path = tmp_path / "keep.csv"
    pairs = [f"{number // 20},{number % 20}" for number in range(SIZE) if number % 7 > 2]
    path.write_text("\n".join(["shard,index", *pairs]))
    states = [
        make_loader(Stream(data, select=each, name="data"), local=tmp_path / "cache").state_dict()
        for each in ("good", str(path))
    ]
    assert states[0]["select"] == states[1]["select"] != ""


def test_parquet_files_are_selected_by_columns_that_a_run_does_not_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = tmp_path / "files"
    folder.mkdir()
    for part in range(3):
        rows = [
            {
                "text": f"text {part} {row}",
                "score": None if row == 3 else row,
                "id": f"{part}-{row}",
            }
            for row in range(30)
        ]
        write_parquet(folder / f"{part}.parquet", rows, row_group_size=7)
    report = select(folder, where="score >= 20")
    assert (report.samples, report.selected) == (90, 30)
    expected = {30 * part + row for part in range(3) for row in range(20, 30)}
    assert read(folder, tmp_path) == expected


def test_an_index_of_json_lines_has_a_selection(tmp_path: Path, cli: Callable[..., Any]) -> None:
    (tmp_path / "files").mkdir()
    for part in range(2):
        rows = [{"text": f"text {part} {row}", "score": row} for row in range(30)]
        lines = "\n".join(map(json.dumps, rows))
        (tmp_path / "files" / f"{part}.jsonl").write_text(f"{lines}\n")
    cli("index", tmp_path / "files", tmp_path / "index", "--all-columns")
    select(tmp_path / "index", where="score in (3, 29)")
    assert read(tmp_path / "index", tmp_path) == {3, 29, 33, 59}


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\xff"), "size or hash"),
        (lambda path: path.write_bytes(b"x"), "size or hash"),
        (lambda path: path.unlink(), r"00001-.*\.bits"),
    ],
)
def test_damaged_bits_are_refused(
    data: str, tmp_path: Path, damage: Callable[[Path], Any], message: str
) -> None:
    select(data, where="score > 2")
    damage(next((Path(data) / "selections" / "good").glob("00001-*")))
    with pytest.raises(Exception, match=message) as caught:
        read(data, tmp_path)
    assert type(caught.value).__module__ == "cloudload.errors"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"version": 2}', '{"version": 1, "rule": {}, "default": true, "groups": [1]}'],
)
def test_a_damaged_index_is_refused(data: str, tmp_path: Path, text: str) -> None:
    select(data, where="score > 2")
    (Path(data) / "selections" / "good" / files.INDEX_NAME).write_text(text)
    with pytest.raises(DatasetError, match=r"cannot use the selection in .*selection\.json"):
        read(data, tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("good", {}, "nothing says what to select"),
        ("good", {"where": "score >"}, "is wrong at character 8"),
        ("a/b", {"where": "score > 1"}, "the name of a selection is 'a/b'"),
        ("good.csv", {"where": "score > 1"}, "without the extension of a file"),
        (
            "good",
            {"where": "lang > 3"},
            r"sample 0 of .* \(id 'doc-0'\) does not suit the condition",
        ),
        ("good", {"where": "quality > 3"}, r"has no column 'quality' in shard.00000"),
        (
            "good",
            {"where": "a > 1", "again": True, "worker": "0/2"},
            "no column|removes all groups",
        ),
    ],
)
def test_wrong_arguments_are_refused(
    data: str, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, DatasetError), match=message):
        select(data, name, **options)


def test_a_list_in_a_format_that_is_not_read_is_refused(data: str, tmp_path: Path) -> None:
    (tmp_path / "listed.tsv").write_text("shard\tindex\n0\t1\n")
    with pytest.raises(DatasetError, match=r"listed\.tsv is no Parquet, JSON Lines or CSV file"):
        select(data, keep=tmp_path / "listed.tsv")


def test_the_command_prints_the_report_and_check_finds_nothing_wrong(
    data: str, cli: Callable[..., Any], tmp_path: Path
) -> None:
    shown = cli("select", data, "good", "--where", "score >= 3", "--json", "--processes", 1).out
    assert json.loads(shown)["selected"] == sum(number % 7 >= 3 for number in range(SIZE))
    assert "leftover" not in cli("check", data).out
    expected = f"selection    good: {json.loads(shown)['selected']:,} documents"
    assert expected in cli("info", data).out
    assert len(read(data, tmp_path)) == json.loads(shown)["selected"]


def test_a_condition_suits_every_encoding(tmp_path: Path) -> None:
    kinds = {"int8": "<b", "uint16": "<H", "int64": "<q", "float64": "<d", "uint64": "<Q"}
    extra = {
        kind: (kind, [np.dtype(form).type(n) for n in range(6)]) for kind, form in kinds.items()
    }
    data = write_mds(tmp_path / "data", ["a"] * 6, extra=extra)
    for kind in kinds:
        select(data, kind, where=f"{kind} in (1, 4)")
        assert read(data, tmp_path, kind, num_lanes=1) == {1, 4}
