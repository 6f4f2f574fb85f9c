"""A run with a selection reads what a filter would leave, but fetches nothing else."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import Stream
from cloudload.errors import CacheError, DatasetError, StreamChangedError
from cloudload.stats import COUNTS, DESELECTED
from cloudload.testing import Leg, assert_same_rows, run_leg
from cloudload.warm import warm_cache
from testkit.awkward import Case
from testkit.corpora import EOS_ID, random_documents, write_mds
from testkit.counted import write_counted
from testkit.examples import EXAMPLES
from testkit.finite_runs import tokens_in
from testkit.kinds import every_case, loaders_of
from testkit.loaders import ids_of, list_settings, make_loader, ranks, rows_of
from testkit.parquet_files import write_corpus

PACKINGS = ("concat", "best_fit", "one_per_row")


def leave_out(texts: frozenset[str], sample: dict[str, Any]) -> str | None:
    text = str(sample["text"])
    return None if text in texts else text


def write_list(path: Path, pairs: Iterable[tuple[Any, int]]) -> str:
    """Write a CSV file of (shard, index)."""
    path.write_text("\n".join(["shard,index", *(f"{shard},{index}" for shard, index in pairs)]))
    return str(path)


def choose(shards: str, option: str, path: Path | str) -> Stream:
    options: dict[str, Any] = {option: str(path)}
    return Stream(shards, **options)


@every_case(most_legs=1)
def test_a_selection_reads_what_a_filter_would_leave(folder: str, case: Case) -> None:
    selecting = loaders_of(case, folder)
    data = [
        Stream(f"{folder}/{number}", proportion=share, repeat=repeat, name=f"stream-{number}")
        for number, (share, repeat) in enumerate(
            zip(
                case.proportions or [None] * len(case.streams),
                case.repeats or [None] * len(case.streams),
                strict=True,
            )
        )
    ]
    options = {"transform": partial(leave_out, case.deselected), "transform_id": "leave out"}
    filtering = loaders_of(case, folder, streams=data, **options)
    [leg] = case.legs
    rows, states = run_leg(selecting, leg)
    expected, others = run_leg(filtering, leg)
    assert_same_rows(rows, expected, "selected")
    for state, other in zip(states, others, strict=True):
        assert state["cursors"] == other["cursors"]
        assert state["residues"] == other["residues"]
        assert merge_filtered(state["counts"]) == merge_filtered(other["counts"])


def merge_filtered(text: str) -> list[list[int]]:
    """Statistics of streams in which deselected documents count as filtered."""
    found = []
    for counts in json.loads(text):
        full = counts + [0] * (len(COUNTS) - len(counts))
        full[COUNTS.index("filtered")] += full.pop(DESELECTED)
        found.append(full)
    return found


# ---------------------------------------------------------------- what is read


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """A dataset of 6 compressed shards of 20 documents."""
    return write_mds(
        tmp_path / "data", random_documents(3, 120), shard_samples=[20] * 6, compression="zstd"
    )


def test_a_shard_without_selected_documents_is_not_fetched(shards: str, tmp_path: Path) -> None:
    keep = write_list(tmp_path / "keep.csv", [(1, 3), ("shard.00004.mds", 19), (4, 0)])
    for workers in (0, 2):
        cache = tmp_path / f"cache-{workers}"
        stream = Stream(shards, select=keep)
        with make_loader(stream, epochs=1, local=cache, num_workers=workers) as loader:
            samples = {int(row[3]) for batch in loader for row in batch.spans.tolist()}
            stats = loader.stats()
        assert samples == {23, 80, 99}
        assert (stats.documents, stats.deselected, stats.filtered) == (3, 117, 0)
        assert [each.epoch for each in stats.streams.values()] == [1]
        assert "deselected" in str(stats)
        fetched = {path.name[:11] for path in cache.rglob("shard.*.mds")}
        assert fetched == {"shard.00001", "shard.00004"}


def test_only_shards_with_selected_documents_count_in_the_working_set(
    shards: str, tmp_path: Path
) -> None:
    keep = write_list(tmp_path / "keep.csv", [(2, index) for index in range(20)])
    size = max(path.stat().st_size for path in Path(shards).glob("shard*"))
    options: dict[str, Any] = {"local": tmp_path / "cache", "download_threads": 1}
    limit = 10 * size
    with pytest.raises(CacheError, match="is below the"):
        next(iter(make_loader(shards, cache_limit=1_000, **options)))
    whole = make_loader(shards, **options).describe()["working_set_bytes"]
    with make_loader(Stream(shards, select=keep), **options) as loader:
        needed = loader.describe()["working_set_bytes"]
        assert needed < whole / 4
        assert "120 samples in 6 shards, of which 20 are selected" in list_settings(loader)
    chosen = Stream(shards, select=keep)
    with make_loader(chosen, cache_limit=min(limit, needed), **options) as loader:
        list(loader.take(5))


def test_a_cache_is_warmed_with_shards_of_selected_documents(shards: str, tmp_path: Path) -> None:
    keep = write_list(tmp_path / "keep.csv", [(2, 1), (3, 4)])
    with make_loader(Stream(shards, select=keep), local=tmp_path / "cache") as loader:
        assert warm_cache(loader).is_all
    assert len(list((tmp_path / "cache").rglob("shard.*.mds"))) == 2


def test_a_run_needs_no_shard_without_selected_documents(counted: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(counted, data)
    keep = write_list(tmp_path / "keep.csv", [(3, index) for index in range(1, 20, 2)])
    for path in data.glob("shard.*"):
        if path.name != "shard.00003.mds":
            path.unlink()
    stream = Stream(str(data), select=keep)
    options: dict[str, Any] = {"lengths": "require", "local": tmp_path / "cache"}
    with make_loader(stream, epochs=1, **options) as loader:
        number = len(loader)
        assert len(ids_of(loader)) == number
        assert loader.stats().documents == 10
    with make_loader(stream, **options) as loader:
        loader.seek(1_000)
        assert {int(row[3]) // 20 for batch in loader.take(3) for row in batch.spans.tolist()} == {
            3
        }


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_every_format_of_a_list_says_the_same(shards: str, tmp_path: Path, ending: str) -> None:
    pairs = [(f"shard.{number:05}.mds", index) for number in (0, 3) for index in (1, 5, 19)]
    pairs += [("shard.00003.mds.zstd", 1)]  # a stored name, and a sample that is listed twice
    csv = write_list(tmp_path / "list.csv", pairs)
    path = tmp_path / f"other.{ending}"
    columns = {"shard": [shard for shard, _ in pairs], "index": [index for _, index in pairs]}
    if ending == "parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), path)
    elif ending == "jsonl":
        rows = [{"shard": shard, "index": index, "why": "spam"} for shard, index in pairs]
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        path = Path(csv)
    for option in ("select", "drop"):
        one, other = (
            make_loader(choose(shards, option, each), local=tmp_path / option)
            for each in (csv, path)
        )
        assert ids_of(one.take(4)) == ids_of(other.take(4))
        assert one.state_dict()["select"] == other.state_dict()["select"]


def test_select_and_drop_together_read_what_both_leave(shards: str, tmp_path: Path) -> None:
    keep = write_list(tmp_path / "keep.csv", [(0, 1), (0, 2), (5, 7)])
    drop = write_list(tmp_path / "drop.csv", [(0, 2), (3, 3)])
    left = write_list(tmp_path / "left.csv", [(0, 1), (5, 7)])
    both = make_loader(Stream(shards, select=keep, drop=drop), local=tmp_path / "cache")
    one = make_loader(Stream(shards, select=left), local=tmp_path / "cache")
    assert both.state_dict()["select"] == one.state_dict()["select"]


def test_a_list_that_leaves_nothing_out_is_no_selection(shards: str, tmp_path: Path) -> None:
    drop = write_list(tmp_path / "none.csv", [])
    state = make_loader(Stream(shards, drop=drop), local=tmp_path / "cache").state_dict()
    assert "select" not in state


def test_a_dataset_may_be_listed_again_with_another_selection(shards: str, tmp_path: Path) -> None:
    good = write_list(tmp_path / "good.csv", [(number, 4) for number in range(6)])
    streams = [Stream(shards, name="all"), Stream(shards, name="good again", select=good)]
    with make_loader(streams, epochs=1, local=tmp_path / "cache") as loader:
        counts: dict[tuple[int, int], int] = {}
        for batch in loader:
            for _, stream, _, sample, start, _ in batch.spans.tolist():
                counts[stream, sample] = counts.get((stream, sample), 0) + (start == 0)
    expected = {(0, sample): 1 for sample in range(120)}
    assert counts == expected | {(1, 20 * number + 4): 1 for number in range(6)}
    assert {path.name for path in (tmp_path / "cache").rglob("shard.*.mds")}.__len__() == 6


def test_fewer_selected_documents_have_fewer_lanes(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "data", ["a"] * 2_000, shard_samples=[200] * 10)
    keep = write_list(tmp_path / "keep.csv", [(number, 3) for number in range(10)])
    lanes = [
        make_loader(data, num_lanes=None, local=tmp_path / "cache").describe()["num_lanes"]
        for data in (Stream(folder), Stream(folder, select=keep))
    ]
    assert lanes == [60, 12]


def test_parquet_files_are_selected_where_they_are(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    texts = random_documents(2, 90)
    files = write_corpus(tmp_path / "files", texts)
    keep = write_list(tmp_path / "keep.csv", [(0, 3), (2, 11)])
    with make_loader(Stream(str(files), select=keep), epochs=1, local=tmp_path / "c") as loader:
        found = rows_of(loader)
        assert loader.stats().documents == 2
    assert sum(ids.count(EOS_ID) for ids in found) >= 2


# ---------------------------------------------------------------- on resume


@given(
    case=st.fixed_dictionaries(
        {
            "packing": st.sampled_from(PACKINGS),
            "has_lengths": st.booleans(),
            "legs": st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 4, 6])),
            "batches": st.integers(0, 12),
        }
    ),
    removed=st.sets(st.integers(0, 119), max_size=80),
)
@settings(max_examples=3 * EXAMPLES, deadline=None)
def test_documents_removed_from_a_running_job_are_in_no_later_row_and_others_are_read_once(
    scratch: Path, counted: str, case: dict[str, Any], removed: set[int]
) -> None:
    packing, has_lengths = case["packing"], case["has_lengths"]
    (before, after), batches = case["legs"], case["batches"]
    options = {
        "packing": packing,
        "epochs": 1,
        "lengths": "require" if has_lengths else "off",
        "overflow": "rows",
        "local": scratch / "cache",
        "open_rows": 2,
    }
    if packing != "one_per_row":
        del options["overflow"]

    rows, states = run_leg(ranks(counted, **options), Leg(before, batch_size=2, batches=batches))
    if states[-1]["tail"] and removed:
        return  # a test below
    drop = write_list(scratch / "removed.csv", [divmod(sample, 20) for sample in sorted(removed)])
    data, accepted = Stream(counted, name="data", drop=drop), {"select": "accept"}
    if removed:
        with pytest.raises(
            StreamChangedError, match=r"(?s)select \(digests of .*on_change={'select'"
        ):
            make_loader(data, **options).load_state_dict(states[-1])
    resumed = ranks(data, on_change=accepted, **options)
    rest, _ = run_leg(resumed, Leg(after, batch_size=1, batches=None), states[-1])
    whole, _ = run_leg(ranks(counted, **options), Leg(batch_size=3, batches=None))
    later = {sample for row in rest for _, _, sample, _, _ in row.spans}
    assert not later & removed
    expected = {key: ids for key, ids in tokens_in(whole).items() if key[1] not in removed}
    kept = [without_spans(row, removed) for row in [*rows, *rest]]
    assert tokens_in(kept) == expected
    # what other ranks and restarts read is the same
    again, _ = run_leg(resumed, Leg(batch_size=2, batches=None), states[-1])
    assert_same_rows(trim(again), trim(rest), "on one rank")


def without_spans(row: Any, removed: set[int]) -> Any:
    """A row without the tokens of removed documents, as one that has no padding."""
    ids, spans, start = [], [], 0
    for span in row.spans:
        size = span[4] - span[3]
        if span[2] not in removed:
            spans.append(span)
            ids += row.input_ids[start : start + size]
        start += size
    return type(row)(tuple(ids), tuple(ids), tuple(spans))


def trim(rows: Sequence[Any]) -> list[Any]:
    return [row for row in rows if not row.is_padding]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("counted") / "data"
    return write_counted(folder, random_documents(8, 120), shard_samples=[20] * 6)


def test_a_removal_in_the_tail_is_refused(counted: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 1, "local": tmp_path / "cache"}
    loader = make_loader(counted, **options)
    tails = [loader.state_dict() for _ in loader]
    drop = write_list(tmp_path / "removed.csv", [(0, 0)])
    again = make_loader(Stream(counted, drop=drop), **options)
    with pytest.raises(StreamChangedError, match="select: cannot change in the tail"):
        again.load_state_dict(tails[-1], on_change={"select": "accept"})


@pytest.mark.parametrize("packing", PACKINGS)
def test_documents_may_be_selected_again(counted: str, tmp_path: Path, packing: str) -> None:
    options: dict[str, Any] = {"packing": packing, "local": tmp_path / "cache"}
    drop = write_list(tmp_path / "removed.csv", [(0, index) for index in range(20)])
    first = make_loader(Stream(counted, drop=drop), **options)
    list(first.take(5))
    then = make_loader(counted, **options)
    then.load_state_dict(first.state_dict(), on_change={"select": "accept"})
    samples = {int(row[3]) for batch in then.take(60) for row in batch.spans.tolist()}
    assert samples & set(range(20))


def test_a_selection_of_appended_documents_only_leaves_a_begun_run_nothing_to_read(
    tmp_path: Path,
) -> None:
    texts, options = random_documents(5, 40), {"local": tmp_path / "cache"}
    data = write_mds(tmp_path / "mds", texts[:20], shard_samples=[20])
    with make_loader(data, **options) as loader:
        state = loader.state_dict()
    write_mds(data, texts, shard_samples=[20, 20])
    appended = Stream(data, name="mds", select=write_list(tmp_path / "new.csv", [(1, 3)]))
    loader = make_loader(appended, **options)
    with pytest.raises(StreamChangedError, match="of the 20 documents of mds with which the"):
        loader.load_state_dict(state, on_change={"select": "accept"})


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        (
            "select",
            "shard,index\nshard.00009.mds,0",
            r"row 1 of .* has the shard 'shard.00009.mds'",
        ),
        ("select", "shard,index\n0,0\n6,0", r"row 2 of .* has the shard '6', but .* has none"),
        ("drop", "shard,index\n0,20", r"has the index '20', but the shard '0' has 20 samples"),
        ("drop", "shard,index\n0,-1", r"has the index '-1'"),
        ("select", "id\nabc", r"lacks a value of shard or index. Its columns are: id. To select"),
        ("drop", "id\nabc", r"run: cloudload select .* NAME --keep-ids FILE \(or --drop-ids"),
        ("select", "shard,index", r"select=.* selects none of the 120 documents of"),
    ],
)
def test_a_wrong_list_is_refused_at_the_start(
    shards: str, tmp_path: Path, option: str, content: str, message: str
) -> None:
    path = tmp_path / "list.csv"
    path.write_text(content)
    with pytest.raises(DatasetError, match=message):
        make_loader(choose(shards, option, path), local=tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", f"shard,index\n0,{'9' * 5_000}", "row 1 of .* has the index '999"),
        ("a.jsonl", '{"shard": [0], "index": 1}', r"row 1 of .* has the shard \[0\], but"),
        ("a.jsonl", '{"shard": 0, "index": {}}', r"row 1 of .* has the index \{\}, but the shard"),
        ("a.jsonl", '[{"shard": 0, "index": 1}]', "row 1 of .* lacks a value of shard or index"),
        ("a.jsonl", '{"shard": 0, "index": 1', r"a\.jsonl cannot be read as jsonl"),
    ],
)
def test_values_that_name_no_sample_are_refused(
    shards: str, tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DatasetError, match=message):
        make_loader(Stream(shards, select=str(tmp_path / name)), local=tmp_path / "cache")


def test_a_damaged_parquet_list_is_named(shards: str, tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "list.parquet"
    columns = {"shard": [0] * 5_000, "index": list(range(5_000))}
    parquet.write_table(pa.table(columns), path, compression="zstd", use_dictionary=False)
    whole = path.read_bytes()
    page, footer = whole[:40] + bytes(200) + whole[240:], whole[:-60] + b"\xff" * 20 + whole[-40:]
    twice = io.BytesIO()
    arrays = [pa.array([0])] * 3
    parquet.write_table(pa.Table.from_arrays(arrays, ["shard", "index", "index"]), twice)
    for damaged in (page, footer, whole[:-9], b"", twice.getvalue()):
        path.write_bytes(damaged)
        with pytest.raises(DatasetError, match=r"list\.parquet cannot be read as parquet: "):
            make_loader(Stream(shards, select=str(path)), local=tmp_path / "cache")


def test_any_text_may_stand_beside_a_listed_sample(shards: str, tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_bytes('{"shard": 0, "index": 1, "title": "a\u2028b\u0085c"}\r\n\r\n'.encode())
    with make_loader(Stream(shards, select=str(path)), local=tmp_path / "cache") as loader:
        assert "of which 1 are selected" in list_settings(loader)


def test_a_name_that_was_not_compiled_is_refused_with_the_command(
    shards: str, tmp_path: Path
) -> None:
    with pytest.raises(
        DatasetError, match=r"found no selection in .*/selections/good.*cloudload s"
    ):
        make_loader(Stream(shards, select="good"), local=tmp_path / "cache")
    with pytest.raises(DatasetError, match=r"drop='ids.txt' of .* is not a Parquet.*--drop-ids"):
        make_loader(Stream(shards, drop="ids.txt"), local=tmp_path / "cache")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"select": "good", "choose": 5}, "both select and choose, which counts documents"),
        ({"drop": 7}, "drop of data is 7. Use the name of a selection, or a file"),
        ({"select": ""}, "select of data is ''"),
        ({"remote": "synthetic:", "select": "good"}, "all synthetic data is read"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stream(**{"remote": "data", **options})


def test_secrets_of_a_selection_are_not_shown() -> None:
    stream = Stream("data", drop="https://user:secret@host/removed.csv?sig=abc")
    assert "secret" not in repr(stream)
    assert "abc" not in repr(stream)
