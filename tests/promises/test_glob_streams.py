"""A glob of datasets has the same rows and states as a list of a stream for each dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import Documents, Stream, select_documents
from cloudload.convert import convert_to_mds
from cloudload.errors import DatasetError, StoreError, StreamChangedError
from cloudload.inspect import read_info
from cloudload.tools.count import count_tokens
from testkit import ROOT
from testkit.conversions import QUIET, write_lines
from testkit.corpora import byte_tokenizer, write_mds
from testkit.counted import count, write_counted
from testkit.loaders import make_loader, rows_of

COUNT: dict[str, Any] = {"tokenizer": byte_tokenizer(), "processes": 1, "progress": False}
SIZES = {"law": 7, "science": 30, "web": 50}


@pytest.fixture(scope="module")
def folder(module_folder: Path) -> Path:
    """Three counted datasets, and files and hidden folders that are none."""
    for name, size in SIZES.items():
        write_counted(module_folder / "in" / name, [f"{name} {row} " * 4 for row in range(size)])
    (module_folder / "in" / "partitions.json").write_text("{}")
    (module_folder / "in" / ".convert").mkdir()
    (module_folder / "in" / "_temporary").mkdir()
    return module_folder / "in"


def in_a_list(folder: Path, **options: Any) -> list[Stream]:
    return [Stream(f"{folder}/{name}", **options) for name in SIZES]


def tokens_of(folder: Path) -> dict[str, int]:
    [indexes] = [
        {name: sorted((folder / name / "lengths").glob("*/index-*.json")) for name in SIZES}
    ]
    return {
        name: sum(group["tokens"] for group in json.loads(found[0].read_text())["groups"])
        for name, found in indexes.items()
    }


def by_hand(folder: Path, proportion: float) -> list[Stream]:
    """The streams of a glob with a proportion, written out."""
    tokens = tokens_of(folder)
    total = sum(tokens.values())
    return [
        Stream(f"{folder}/{name}", proportion=proportion * count / total)
        for name, count in tokens.items()
    ]


def read(data: Any, number: int = 40, **options: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """The rows of the first batches, and the state after them."""
    with make_loader(data, **options) as loader:
        return rows_of(loader.take(number)), loader.state_dict()


def test_a_glob_without_a_proportion_is_one_corpus_of_named_streams(folder: Path) -> None:
    glob, listed = (read(data, epochs=1) for data in (f"{folder}/*", in_a_list(folder)))
    assert glob == listed
    with make_loader(f"{folder}/*") as loader:
        assert loader.stream_names == ("law", "science", "web")
        assert loader.num_samples == sum(SIZES.values())


def test_a_proportion_of_a_glob_is_divided_by_the_tokens_of_its_datasets(
    folder: Path, tmp_path: Path
) -> None:
    other = write_counted(tmp_path / "books", ["a book " * 9] * 20)
    books = Stream(other, proportion=0.6, name="books")
    glob = [books, Stream(f"{folder}/*", proportion=0.4)]
    listed = [books, *by_hand(folder, 0.4)]
    assert read(glob) == read(listed)
    with make_loader(glob) as loader:
        weights = json.loads(loader.state_dict()["mixture"])["schedule"][0][1]
    assert weights[0] == 0.6
    assert sum(weights[1:]) == pytest.approx(0.4)


def test_states_of_the_glob_and_of_the_list_resume_each_other(folder: Path) -> None:
    glob, listed = Stream(f"{folder}/*", proportion=1), by_hand(folder, 1)
    whole = read(glob, 30)[0]
    for before, after in ((glob, listed), (listed, glob)):
        first, state = read(before, 11)
        with make_loader(after) as loader:
            loader.load_state_dict(state)
            assert first + rows_of(loader.take(19)) == whole


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_glob_reads_the_rows_of_the_list_that_it_selects(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("law")
    names = data.draw(st.sets(st.sampled_from(["a", "ab", "b-c", "c=d", "e.f"]), min_size=1))
    split = data.draw(st.sampled_from([None, "train"]))
    for name in names:
        write_counted(root / "in" / name / (split or ""), [f"{name} {row}" for row in range(9)])
    pattern = data.draw(st.sampled_from(["*", "[abce]*", "?*", "a*", "*c*"]))
    kept = sorted(
        name
        for name in names
        if pattern in ("*", "[abce]*", "?*") or (name[0] == "a" if pattern == "a*" else "c" in name)
    )
    repeat = data.draw(st.sampled_from([None, 2.0]))
    glob = Stream(f"{root}/in/{pattern}", split=split, repeat=repeat)
    if not kept:
        with pytest.raises(DatasetError, match="neither a file nor a folder"):
            make_loader(glob)
        return
    listed = [Stream(f"{root}/in/{name}", split, repeat=repeat, name=name) for name in kept]
    assert read(glob, 9) == read(listed, 9)


KEPT = {"few": (3, 8, 5), "other": (9, 2, 14), "empty": (1, 1, 1)}
"""For each selection, the number of documents that it has of each dataset."""


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three counted datasets with selections. Document n has n words, so the first is empty."""
    root = tmp_path_factory.mktemp("chosen")
    for number, name in enumerate(SIZES):
        data, score = root / name, {"score": ("int", [*range(20)])}
        write_mds(data, [f"{name} " * row for row in range(20)], extra=score)
        count(data)
        for selection, kept in KEPT.items():
            select_documents(data, selection, where=f"score < {kept[number]}", **QUIET)
    return root


@pytest.mark.parametrize("sets", [False, True], ids=["as begun", "with set weights"])
def test_shares_are_by_selected_tokens_and_stay_when_the_selection_of_a_run_changes(
    chosen: Path, tmp_path: Path, *, sets: bool
) -> None:
    tokens = [
        sum(len(f"{name} ") * row for row in range(kept))
        for name, kept in zip(SIZES, KEPT["few"], strict=True)
    ]
    shares = [0.5 * each / sum(tokens) for each in tokens]
    listed = [
        Stream(f"{chosen}/{name}", proportion=share, select="few")
        for name, share in zip(SIZES, shares, strict=True)
    ]
    options: dict[str, Any] = {"local": tmp_path / "cache"}
    accepted = {"select": "accept"}
    with make_loader(Stream(f"{chosen}/*", proportion=0.5, select="few"), **options) as loader:
        assert weights_of(loader.state_dict()) == [shares]
        rows = rows_of(loader.take(5))
        assert read(listed, 5, **options) == (rows, loader.state_dict())
        if sets:
            loader.set_weights(dict.fromkeys(SIZES, 1.0), at_row=40)
        state = loader.state_dict()
    with make_loader(Stream(f"{chosen}/*", proportion=0.5, select="other"), **options) as resumed:
        assert weights_of(resumed.state_dict()) != [shares]
        resumed.load_state_dict(state, on_change=accepted)
        list(resumed.take(2))
        again = resumed.state_dict()
        assert again["mixture"] == state["mixture"]
        assert [each["proportion"] for each in json.loads(again["sources"])["streams"]] == shares
        resumed.set_weights({"law": 1.0}, at_row=60)
        assert weights_of(resumed.state_dict())[0] == shares
        assert weights_of(resumed.state_dict())[-1] == [1.0, 0.0, 0.0]
    with make_loader(Stream(f"{chosen}/*", proportion=0.25, select="other"), **options) as resumed:
        [weights] = weights_of(resumed.state_dict())
        resumed.load_state_dict(state, on_change=accepted)
        assert weights_of(resumed.state_dict()) == [shares, weights]


def test_datasets_whose_selected_documents_are_empty_cannot_divide_a_proportion(
    chosen: Path,
) -> None:
    with pytest.raises(DatasetError, match="have no tokens, so they cannot divide a proportion"):
        make_loader(Stream(f"{chosen}/*", proportion=1, select="empty"))


def weights_of(state: dict[str, Any]) -> list[list[float]]:
    """The weights of each entry of a state's mixture."""
    return [weights for _, weights in json.loads(state["mixture"])["schedule"]]


def test_appended_shards_do_not_change_the_shares_of_a_run(tmp_path: Path) -> None:
    def convert(name: str, rows: int, **options: Any) -> None:
        source = write_lines(
            tmp_path / f"{name}-{rows}.jsonl", [f"{name} {row}" for row in range(rows)]
        )
        data = tmp_path / "in" / name
        convert_to_mds(source, data, **QUIET, tokenizer=byte_tokenizer(), **options)

    for name, rows in (("a", 20), ("b", 30)):
        convert(name, rows)
    glob = Stream(f"{tmp_path}/in/*", proportion=1)
    _, state = read(glob, 3)
    convert("a", 50, append=True)
    with make_loader(glob) as loader:
        assert weights_of(loader.state_dict()) != weights_of(state)
        loader.load_state_dict(state)
        assert loader.state_dict()["mixture"] == state["mixture"]


def test_a_schedule_weighs_the_datasets_of_a_glob_by_name(folder: Path) -> None:
    schedule = [(0, {"d/law": 0.5, "d/web": 0.5}), (40, {"d/science": 1.0})]
    glob = Stream(f"{folder}/*", name="d")
    listed = [Stream(f"{folder}/{name}", name=f"d/{name}") for name in SIZES]
    options: dict[str, Any] = {"schedule": schedule, "lengths": "off"}
    assert read(glob, **options) == read(listed, **options)


def test_ranks_agree_and_a_finite_mixture_of_a_glob_ends_for_each_dataset(folder: Path) -> None:
    glob = Stream(f"{folder}/*", proportion=1)
    whole, _ = read(glob, 400, epochs=1)
    loaders = [make_loader(glob, epochs=1, dp_rank=rank, dp_world_size=2) for rank in range(2)]
    parts = [[batch["input_ids"].tolist() for batch in loader] for loader in loaders]
    joined = [row for both in zip(*parts, strict=True) for rows in both for row in rows]
    assert sorted(joined)[-len(whole) :] == sorted(whole)


def test_a_proportion_of_a_glob_needs_token_lengths(tmp_path: Path) -> None:
    for name in "ab":
        write_mds(tmp_path / "in" / name, ["text"] * 5)
    glob = Stream(f"{tmp_path}/in/*", proportion=1)
    with pytest.raises(DatasetError, match=r"divide it by their tokens.*cloudload count") as error:
        make_loader(glob)
    assert "without proportions, as one corpus" in str(error.value)
    with pytest.raises(ValueError, match="lengths is 'off', but the proportion of a glob"):
        make_loader(glob, lengths="off")
    make_loader(f"{tmp_path}/in/*").close()


def test_a_dataset_that_appears_later_is_named_and_can_be_added_at_the_end(tmp_path: Path) -> None:
    for name in "ac":
        write_counted(tmp_path / "in" / name, [f"{name} {row}" for row in range(20)])
    glob = Stream(f"{tmp_path}/in/*", proportion=1)
    _, state = read(glob, 3)
    write_counted(tmp_path / "in" / "b", ["new"] * 20)
    appeared = pytest.raises(StreamChangedError, match=r"loader has \['a', 'b', 'c'\].*at the end")
    with make_loader(glob) as loader, appeared:
        loader.load_state_dict(state)
    listed = [Stream(f"{tmp_path}/in/{name}", proportion=0.5) for name in "acb"]
    with make_loader(listed) as loader:
        loader.load_state_dict(state)
        assert len(rows_of(loader.take(5))) == 20


def test_folders_that_are_not_datasets_and_mixed_globs_are_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    write_mds(tmp_path / "in" / "a", ["text"] * 5)
    (tmp_path / "in" / "empty").mkdir()
    with pytest.raises(StoreError, match="in/empty is empty"):
        make_loader(f"{tmp_path}/in/*")
    (tmp_path / "in" / "empty").rmdir()
    table = pyarrow.table({"text": ["a"]})
    pyarrow.parquet.write_table(table, tmp_path / "in" / "x.parquet")
    with pytest.raises(DatasetError, match=r"selects 1 folders, .*in/a, and Parquet files"):
        make_loader(f"{tmp_path}/in/*")
    with make_loader(f"{tmp_path}/in/*.parquet") as loader:
        assert loader.num_samples == 1
    with pytest.raises(DatasetError, match="neither a file nor a folder"):
        make_loader(f"{tmp_path}/in/nothing*")
    with pytest.raises(ValueError, match="has choose"):
        make_loader(Stream(f"{tmp_path}/in/[a]", choose=3))


def test_the_datasets_of_a_partitioned_conversion_are_a_mixture(tmp_path: Path) -> None:
    for name in ("law", "web"):
        write_lines(tmp_path / "raw" / name / "x.jsonl", [f"{name} {row}" for row in range(30)])
    out, tokenizer = tmp_path / "out", byte_tokenizer()
    options: dict[str, Any] = {"partition_by": "folder", "processes": 1, "progress": False}
    convert_to_mds(tmp_path / "raw", out, tokenizer=tokenizer, **options)
    with make_loader(Stream(f"{out}/*", proportion=1), epochs=1) as loader:
        assert loader.stream_names == ("law", "web")
        assert len(rows_of(loader)) >= len(loader)
    with pytest.raises(DatasetError, match=r"or '.*/out/\*' for all of them"):
        make_loader(str(out))


def test_each_dataset_of_a_glob_uses_its_own_selection_of_the_name(tmp_path: Path) -> None:
    for name, size in SIZES.items():
        scores = {"score": ("int", [*range(size)])}
        write_mds(tmp_path / "in" / name, [f"{name} {row}" for row in range(size)], extra=scores)
        select_documents(tmp_path / "in" / name, "good", where=f"score >= {size - 3}", **QUIET)
    glob = Stream(f"{tmp_path}/in/*", select="good")
    options: dict[str, Any] = {"epochs": 1, "local": tmp_path / "c"}
    assert read(glob, **options) == read(in_a_list(tmp_path / "in", select="good"), **options)
    with make_loader(glob, **options) as loader:
        read_samples = {
            (loader.stream_names[stream], sample)
            for batch in loader
            for _, stream, _, sample, _, _ in batch.spans.tolist()
        }
    expected = {(name, size - back) for name, size in SIZES.items() for back in (1, 2, 3)}
    assert read_samples == expected
    (tmp_path / "in" / "law" / "selections" / "good" / "selection.json").unlink()
    with pytest.raises(DatasetError, match=r"found no selection in .*/in/law/selections/good"):
        make_loader(glob, **options)


def test_one_command_selects_documents_of_all_datasets_of_a_glob(tmp_path: Path, cli: Any) -> None:
    for folder in ("glob", "alone"):
        for name, size in SIZES.items():
            texts, scores = [f"{name} {row}" for row in range(size)], [*range(size)]
            write_mds(tmp_path / folder / name, texts, extra={"score": ("int", scores)})
    glob, rule = f"{tmp_path}/glob/*", "score >= 5"
    assert select_documents(glob, "good", where=rule, worker="0/2", **QUIET) is None
    report = select_documents(glob, "good", where=rule, worker="1/2", **QUIET)
    assert report is not None
    for name in SIZES:
        select_documents(tmp_path / "alone" / name, "good", where=rule, **QUIET)
    found = {f"{tmp_path}/glob/{name}": size - 5 for name, size in SIZES.items()}
    assert report.datasets == found
    assert report.selected == sum(found.values())
    for path in (tmp_path / "alone").rglob("selections/good/*"):
        assert (tmp_path / "glob" / path.relative_to(tmp_path / "alone")).read_bytes() == (
            path.read_bytes()
        )
    said = cli("select", glob, "good", "--where", "score >= 5").out
    assert f"45  {tmp_path}/glob/web" in said
    for option in ("keep", "drop", "out"):
        wrong: dict[str, Any] = {option: "listed.csv"}
        with pytest.raises(ValueError, match=rf"of 3 datasets, and {option} .* a single dataset"):
            select_documents(glob, "other", where=rule, **wrong, **QUIET)


@pytest.mark.parametrize("option", ["select", "drop"])
def test_a_list_of_documents_of_a_glob_is_refused(folder: Path, option: str) -> None:
    options: dict[str, Any] = {option: "listed.csv"}
    glob = Stream(f"{folder}/*", **options)
    with pytest.raises(ValueError, match=rf"of 3 datasets, and has {option}='listed.csv', a file"):
        make_loader(glob)


def test_documents_take_a_glob(folder: Path) -> None:
    assert len(list(Documents(f"{folder}/*", shuffle=False))) == sum(SIZES.values())


def test_a_store_lists_the_folders_of_a_glob(store_url: str) -> None:
    for name in ("b", "a"):
        write_mds(f"{store_url}/in/{name}/v2", [f"{name} text"] * 6)
    with make_loader(f"{store_url}/in/*/v2") as loader:
        assert loader.stream_names == ("a", "b")
        assert len(rows_of(loader.take(2))) == 8


def test_one_count_covers_all_datasets_of_a_glob(tmp_path: Path) -> None:
    for name, size in SIZES.items():
        write_mds(tmp_path / "in" / name, [f"{name} {row} " * 4 for row in range(size)])
    glob = f"{tmp_path}/in/*"
    for worker in ("0/3", "2/3"):
        assert count_tokens(glob, worker=worker, **COUNT) is None
    report = count_tokens(glob, worker="1/3", **COUNT)
    assert report is not None
    assert report.samples == sum(SIZES.values())
    alone = {f"{tmp_path}/in/{name}": count(tmp_path / "in" / name) for name in SIZES}
    assert report.datasets == {url: each.tokens for url, each in alone.items()}
    assert report.tokens == sum(each.tokens for each in alone.values())
    assert all(each.counted_groups == 0 for each in alone.values())
    assert report.stats.longest == max(each.stats.longest for each in alone.values())
    assert any(line.startswith("  datasets   3, the largest") for line in report.describe())
    again = count_tokens(glob, by="text", again=True, **COUNT)
    assert again is not None
    assert sum(value.tokens for value in again.values) == report.tokens
    with make_loader(Stream(glob, proportion=1)) as loader:
        assert len(rows_of(loader.take(3))) == 12


def test_info_summarizes_all_datasets_of_a_glob(folder: Path, cli: Any) -> None:
    whole = read_info(f"{folder}/*")
    parts = [read_info(folder / name) for name in SIZES]
    assert whole.datasets == SIZES
    for name in ("samples", "shards", "raw_bytes", "stored_bytes"):
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts)
    assert whole.sample_bytes
    assert whole.sample_bytes.count == whole.samples
    printed = cli("info", f"{folder}/*").out
    assert "datasets     3, the largest: web 50, science 30, law 7" in printed


def test_head_and_check_name_each_dataset_of_a_glob(folder: Path, tmp_path: Path, cli: Any) -> None:
    shown = [json.loads(line) for line in cli("head", f"{folder}/*", "-n", "2").out.splitlines()]
    expected = [(f"{folder}/{name}", number) for name in SIZES for number in range(2)]
    assert [(each["dataset"], each["sample"]) for each in shown] == expected
    alone = cli("head", f"{folder}/law", "-n", "2").out.splitlines()
    assert [json.loads(line) for line in alone] == [
        {name: value for name, value in each.items() if name != "dataset"} for each in shown[:2]
    ]
    report = json.loads(cli("check", f"{folder}/*", "--json").out)
    found = {each["dataset"]: each["samples"] for each in report["datasets"]}
    assert found == {f"{folder}/{name}": size for name, size in SIZES.items()}
    lines = cli("check", f"{folder}/*").out.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == list(found)
    config = tmp_path / "run.yaml"
    run = {"data": f"{folder}/*", "tokenizer": str(ROOT / "examples/tokenizer"), "seq_len": 16}
    config.write_text(json.dumps(run))
    of_run = json.loads(cli("check", "--config", str(config), "--json").out)
    assert [each["dataset"] for each in of_run["datasets"]] == list(found)


def test_plan_forecasts_a_glob(folder: Path, cli: Any) -> None:
    options = ("--tokenizer", str(ROOT / "examples/tokenizer"), "--seq-len", "16")
    planned = cli(
        *("plan", "--data", f"{folder}/*", *options, "--batch-size", "4", "--steps", "3"),
        *("--no-measure", "--num-lanes", "12"),
    ).out
    assert "law, " in planned.splitlines()[0]


def test_a_mixture_with_too_many_cursors_is_refused_with_the_way_out(tmp_path: Path) -> None:
    for number in range(2):
        write_mds(tmp_path / str(number), [f"text {row}" for row in range(9)])
    streams = [Stream(f"{tmp_path}/{number}", proportion=1) for number in range(2)]
    with pytest.raises(ValueError, match=r"2 streams .* have 4,400,000 cursors") as error:
        make_loader(streams, num_lanes=2_200_000)
    assert "as one corpus" in str(error.value)
    assert "num_lanes to at most 2,097,152" in str(error.value)
    with make_loader([f"{tmp_path}/0", f"{tmp_path}/1"], num_lanes=2_200_000) as loader:
        assert loader.num_samples == 18
