"""`convert --like` copies each shard of an index to an ordinary MDS shard, so that a run that began
on one of them continues on the other, exact to the token."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import Documents, Stream, convert_to_mds
from cloudload.convert import index_files
from cloudload.data.mds import virtual_index
from cloudload.data.mds.dataset import Corpus, open_corpus
from cloudload.data.mds.virtual_index import ColumnChoice
from cloudload.data.storage.locations import Location
from cloudload.errors import ConvertError, StoreError, StreamChangedError
from cloudload.run.state_fields import SAMPLES_FIELD
from cloudload.testing import Leg, Row, run_leg
from cloudload.tools.check import check_dataset
from cloudload.tools.convert import line_index
from testkit.both_readers import streaming_dataset
from testkit.conversions import (
    QUIET,
    convert_until,
    convert_until_write,
    dataset_bytes,
    write_lines,
)
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.counted import count
from testkit.line_files import index, write_line_corpus
from testkit.loaders import ranks
from testkit.parquet_files import write_corpus, write_parquet
from testkit.quick_laws import quick_laws as quick_laws
from testkit.segments import LastFirst, Twice
from testkit.state_fields import without

DOCUMENTS = [*random_documents(5, 160), "", "é 狐 \x00", "z" * 3_000]
WITH_NULLS: list[Any] = [None if n % 9 == 4 else text for n, text in enumerate(DOCUMENTS)]
TEXT_ONLY = ColumnChoice("text", has_others=False)
SEGMENTS: dict[str, Any] = {"segment_bytes": 3_000}
OF_THE_DATA = ("sources", SAMPLES_FIELD)
"""The fields in which a state on copies differs: the locations, and hashes of the samples, which
virtual shards do not have."""


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (virtual_index, line_index):
        monkeypatch.setattr(module, "SHARD_BYTES", 3_000)


def write(folder: Path, texts: Sequence[Any] = WITH_NULLS, **options: Any) -> str:
    """Write documents, and nulls, to Parquet files, and return their folder."""
    return str(write_corpus(folder, texts, **{"row_group_size": 9, **options}))


def copy(like: Any, out: Path, **options: Any) -> str:
    """Copy the shards of an index, and return the location of the copies."""
    convert_to_mds([], out, like=like, **(QUIET | options))
    return str(out)


def open_data(location: Any) -> Corpus:
    return open_corpus([Location(str(location))], choices=[TEXT_ONLY])


class RawShard(NamedTuple):
    """A shard, as a reader of samples sees it."""

    columns: list[tuple[str, str]]
    sizes: list[int]
    samples: bytes
    samples_hash: str


def shards_of(location: Any, root: Path) -> list[RawShard]:
    """All raw shards of a dataset, fetched as a loader does."""
    from cloudload.data.cache.shard_cache import ShardCache

    corpus = open_data(location)
    cache = ShardCache(corpus, root, threads=3, verify="always")
    try:
        found = [cache.shard(number) for number in range(len(corpus.shard_sizes))]
        return [
            RawShard(
                [(column.name, column.encoding) for column in shard.info.columns],
                shard.sample_bytes().tolist(),
                bytes(shard.samples),
                shard.samples_hash,
            )
            for shard in found
        ]
    finally:
        cache.close()


# ---------------------------------------------------------------- a run continues


def run(make: Sequence[Any], legs: Sequence[Leg]) -> tuple[list[Row], list[dict[str, Any]]]:
    """Run the legs, each with the next of the loaders, killed after its last batch."""
    rows: list[Row] = []
    states: list[dict[str, Any]] = []
    state = None
    for leg, make_rank in zip(legs, itertools.cycle(make), strict=False):
        more, found = run_leg(make_rank, leg, state)
        rows, states, state = rows + more, [*states, *found[1:]], found[-1]
    return rows, states


WORLDS = [1, 2, 3]
PACKINGS = ["concat", "best_fit", "one_per_row"]


@dataclass(frozen=True)
class Case:
    """Documents, and a run that reads them on both kinds of shards in turn."""

    texts: list[Any]
    suffix: str
    """Of the names of the files."""
    row_group_size: int
    compression: str | None
    packing: str
    legs: list[Leg]
    begins_on_copies: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    batches = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    worlds = [draw(st.sampled_from([1, 2, 3])) for _ in batches]
    pairs = zip(worlds, batches, strict=True)
    return Case(
        ["the first document", *draw(st.lists(st.sampled_from(WITH_NULLS), min_size=9))],
        draw(st.sampled_from([".parquet", ".jsonl", ".jsonl.gz"])),
        draw(st.integers(1, 12)),
        draw(st.sampled_from(["zstd", "gz", None])),
        draw(st.sampled_from(["concat", "best_fit", "one_per_row"])),
        [Leg(world, batch_size=12 // world, batches=number) for world, number in pairs],
        draw(st.booleans()),
    )


@given(case=cases())
@settings(max_examples=20, deadline=None)
def test_a_run_continues_on_copies_and_back_on_any_world(
    tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    folder = tmp_path_factory.mktemp("law")
    if case.suffix == ".parquet":
        data = write(folder / "in", case.texts, row_group_size=case.row_group_size, num_files=2)
    else:
        write_line_corpus(folder / "in", case.texts, num_files=2, suffix=case.suffix)
        data = index(folder / "in", folder / "index")
    copies = copy(data, folder / "out", compression=case.compression)
    options: dict[str, Any] = {"packing": case.packing, "on_error": "skip", "num_lanes": 6}
    streams = [Stream(each, name="web") for each in (data, copies)]
    both = [ranks(each, local=folder / "cache", **options) for each in streams]
    whole = [replace(leg, ranks=1, batch_size=12) for leg in case.legs]
    expected, states = run([both[0]], whole)
    found, saved = run(both[::-1] if case.begins_on_copies else both, case.legs)
    assert found == expected
    # the counts of bad and empty documents, and the cursors, are the same after each step
    assert [without(state, *OF_THE_DATA) for state in saved] == [
        without(state, *OF_THE_DATA) for state in states
    ]


@pytest.mark.parametrize("has_lengths", [False, True])
@pytest.mark.parametrize("mixes", [False, True])
def test_a_mixture_with_one_stream_copied_continues_to_its_end(
    tmp_path: Path, has_lengths: bool, mixes: bool
) -> None:
    data = write(tmp_path / "in")
    copies = copy(data, tmp_path / "out")
    other = write_mds(tmp_path / "mds", random_documents(7, 80), shard_samples=[30, 50])
    if has_lengths:
        for each in (data, copies, other):
            count(each, on_error="skip")

    def make(location: str) -> Any:
        shares = (0.6, 0.4) if mixes else (None, None)
        streams = [
            Stream(each, name=name, proportion=share)
            for each, name, share in zip((location, other), ("web", "code"), shares, strict=True)
        ]
        options: dict[str, Any] = {"on_error": "skip", "num_lanes": 6}
        options |= {"lengths": "require" if has_lengths else "off"}
        if has_lengths or not mixes:
            options["epochs"] = 1
        return ranks(streams, local=tmp_path / "cache", **options)

    is_finite = has_lengths or not mixes
    last = Leg(3, batch_size=4, batches=None if is_finite else 9)
    legs = [Leg(1, batch_size=12, batches=3), Leg(2, batch_size=6, batches=4), last]
    expected, states = run([make(data)], [Leg(1, batch_size=12, batches=None if is_finite else 16)])
    found, saved = run([make(data), make(copies)], legs)
    assert found == expected
    assert saved[-1]["counts"] == states[-1]["counts"]


def test_lengths_of_the_index_are_those_of_the_copies(tmp_path: Path) -> None:
    data = write(tmp_path / "in")
    index_files(data, tmp_path / "index")
    copies = copy(tmp_path / "index", tmp_path / "out")
    count(tmp_path / "index", on_error="skip")
    counted = copy(
        tmp_path / "index", tmp_path / "counted", tokenizer=byte_tokenizer(), on_error="skip"
    )
    files = [
        {path.name: path.read_bytes() for path in Path(folder, "lengths").rglob("*.*")}
        for folder in (tmp_path / "index", counted)
    ]
    assert files[0] == files[1] != {}
    legs = [Leg(3, batch_size=4, batches=None)]
    options: dict[str, Any] = {"epochs": 1, "on_error": "skip", "local": tmp_path / "cache"}
    expected, _ = run([ranks(data, **options)], legs)
    for location in (str(tmp_path / "index" / "lengths"), "require"):
        place = copies if location != "require" else counted
        assert run([ranks(place, lengths=location, **options)], legs)[0] == expected


def test_groups_of_lengths_are_cut_alike_although_raw_sizes_are_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloudload.run.lengths import lengths_index

    texts = [f"{n % 3} the same text " * 40 for n in range(120)]  # larger than the estimate
    data = write(tmp_path / "in", texts)
    copies = copy(data, tmp_path / "out")
    tables = [open_data(each).datasets[0].table for each in (data, copies)]
    assert tables[1].raw_bytes.sum() > 1.4 * tables[0].raw_bytes.sum()
    monkeypatch.setattr(lengths_index, "GROUP_BYTES", 2 * int(tables[0].raw_bytes[0]))
    key = lengths_index.LengthsKey("a", "b", "c")
    groups = [list(lengths_index.cut_groups(table, key)) for table in tables]
    assert groups[0] == groups[1]
    assert len(groups[0]) > 2


@pytest.mark.parametrize("compression", ["zstd", None])
def test_a_run_on_mds_shards_without_hashes_of_samples_continues_on_copies(
    tmp_path: Path, compression: str | None
) -> None:
    """As of a dataset of `MDSWriter`, whose shards cannot be compared with others."""
    data = write_mds(
        tmp_path / "mds", DOCUMENTS, shard_samples=[40, 1, 60], compression=compression
    )
    copies = copy(data, tmp_path / "out", compression="gz")
    again = copy(copies, tmp_path / "again", compression="br", hashes=[])
    make = [ranks(each, local=tmp_path / "cache") for each in (data, copies, again)]
    legs = [Leg(batch_size=12, batches=3), Leg(2, batch_size=6), Leg(3, batch_size=4)]
    assert run(make, legs)[0] == run([make[0]], [Leg(batch_size=12, batches=9)])[0]
    assert SAMPLES_FIELD not in run_leg(make[0], Leg(batches=1))[1][-1]


def test_documents_by_index_continue_on_copies(tmp_path: Path) -> None:
    data = write(tmp_path / "in", DOCUMENTS)
    copies = copy(data, tmp_path / "out")
    for first, second in ((data, copies), (copies, data)):
        queue, again = (
            Documents(each, local=tmp_path / "cache", epochs=2).queue() for each in (first, second)
        )
        queue.done(index for index, _ in queue.take(20))
        again.load_state_dict(queue.state_dict())
        assert again.take(300) == queue.take(300) != []


def test_a_run_keeps_its_shards_on_copies_of_more_files(tmp_path: Path) -> None:
    make = ranks(write(tmp_path / "in"), local=tmp_path / "cache", on_error="skip")
    states = run_leg(make, Leg(batches=3))[1]
    expected, _ = run_leg(make, Leg(batches=9), states[-1])
    write_parquet(tmp_path / "in" / "part-9.parquet", [{"id": "new", "text": "new " * 900}])
    copies = copy(tmp_path / "in", tmp_path / "out")
    again = ranks(copies, local=tmp_path / "cache", on_error="skip")
    assert run_leg(again, Leg(batches=9), states[-1])[0] == expected


def test_a_run_on_other_files_is_refused(tmp_path: Path) -> None:
    state = run_leg(ranks(write(tmp_path / "in"), local=tmp_path / "cache"), Leg(batches=2))[1][-1]
    other: list[Any] = [text and text.upper() for text in WITH_NULLS]
    copies = copy(write(tmp_path / "other", other), tmp_path / "out")
    with pytest.raises(StreamChangedError, match="data "):
        run_leg(ranks(copies, local=tmp_path / "cache"), Leg(), state)


def test_a_plain_conversion_is_refused_as_data_that_cannot_be_compared(tmp_path: Path) -> None:
    data = write(tmp_path / "in", DOCUMENTS[:50], num_files=1, row_group_size=50)
    state = run_leg(ranks(data, local=tmp_path / "cache"), Leg(batches=2))[1][-1]
    convert_to_mds(data, tmp_path / "out", **QUIET)
    with pytest.raises(StreamChangedError, match="cloudload cannot tell whether the samples are"):
        run_leg(ranks(str(tmp_path / "out"), local=tmp_path / "cache"), Leg(), state)


def test_an_identity_that_is_no_identity_is_refused(tmp_path: Path) -> None:
    copies = copy(write(tmp_path / "in"), tmp_path / "out")
    path = Path(copies, "index.json")
    listed = json.loads(path.read_text())
    for identity in ("", "x [('a', 'b')]", "12\n3", "99999999999 []"):
        listed["shards"][0]["raw_data"]["hashes"]["identity"] = identity
        path.write_text(json.dumps(listed))
        with pytest.raises(Exception, match="of a shard is not a size and hashes"):
            open_data(copies)


# ---------------------------------------------------------------- an ordinary MDS dataset


def rich_rows() -> Iterator[dict[str, Any]]:
    for n, text in enumerate(WITH_NULLS):
        yield {
            "content": text,
            "tokens": [n, n + 1],
            "meta": {"n": n, "tags": [None, "x"]},
            "score": None if n % 7 == 0 else n / 3,
        }


@pytest.mark.parametrize(
    "options",
    [
        {"text_key": "content"},
        {"tokens_key": "tokens"},
        {"text_key": "content", "all_columns": True},
    ],
    ids=["text", "token IDs", "all columns"],
)
def test_copies_have_the_samples_and_columns_of_the_cache(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    write_parquet(tmp_path / "in" / "a.parquet", list(rich_rows()), row_group_size=9)
    write_parquet(tmp_path / "in" / "b.parquet", list(rich_rows())[1:4])  # without nulls in `score`
    index_files(tmp_path / "in", tmp_path / "index", **options)
    expected = shards_of(tmp_path / "index", tmp_path / "cache")
    assert len(expected) > 3
    for number, like in enumerate(("index", "in")):
        copies = copy(tmp_path / like, tmp_path / f"{number}", **options)
        assert shards_of(copies, tmp_path / "cache") == expected
    listed = [info.samples_hash for info in open_data(copies).datasets[0].shards]
    assert listed == [shard.samples_hash for shard in expected]


@pytest.mark.usefixtures("alone_with_streaming")
def test_streaming_dataset_reads_the_copies(tmp_path: Path) -> None:
    pytest.importorskip("streaming")
    copies = copy(write(tmp_path / "in"), tmp_path / "out", compression="zstd", hashes=["sha1"])
    dataset = streaming_dataset(local=copies, batch_size=1, shuffle=False, validate_hash="sha1")
    assert dataset.num_samples == len(WITH_NULLS)
    for number, text in enumerate(WITH_NULLS):
        if text is not None:
            assert dataset[number] == {"id": f"d{number}", "text": text}
        else:  # a null has no text, so that both readers fail on it
            with pytest.raises(UnicodeDecodeError):
                dataset[number]


def test_check_finds_nothing_in_copies_of_good_documents(tmp_path: Path) -> None:
    good = [text for text in DOCUMENTS if text]
    for compression in ("zstd", None):
        copies = copy(
            write(tmp_path / "in", good), tmp_path / f"{compression}", compression=compression
        )
        assert not [each for each in check_dataset(copies).findings if each.kind.startswith("hash")]


# ---------------------------------------------------------------- as other conversions


def test_a_killed_copy_is_resumed_at_any_object(tmp_path: Path) -> None:
    data = write(tmp_path / "in")
    options: dict[str, Any] = QUIET | {"like": data, "tokenizer": byte_tokenizer()}
    options |= {"on_error": "skip"}
    for each in ({}, SEGMENTS):
        whole = tmp_path / f"whole{len(each)}"
        convert_to_mds([], whole, **options, **each)
        expected = dataset_bytes(str(whole))
        shards = sum("shard" in name for name in expected)
        assert shards > 8
        for stop in range(0, shards, 4):
            out = tmp_path / f"out{len(each)}-{stop}"
            convert_until(stop, [], out, **options, **each)
            report = convert_to_mds([], out, **options, **each)
            assert stop - 2 < report.resumed_shards <= stop  # of finished segments
            assert dataset_bytes(str(out)) == expected
        for ending in ("00000.done.json", "convert-report.json", "index.json"):
            out = tmp_path / f"out{len(each)}-{ending}"
            convert_until_write(ending, [], out, **options, **each)
            convert_to_mds([], out, **options, **each)
            assert dataset_bytes(str(out)) == expected


def test_all_engines_and_workers_write_the_same_bytes(tmp_path: Path) -> None:
    index_files(write(tmp_path / "in"), tmp_path / "index")
    options: dict[str, Any] = {"like": tmp_path / "index", "progress": False, **SEGMENTS}
    report = convert_to_mds([], tmp_path / "out", processes=1, **options)
    expected = dataset_bytes(str(tmp_path / "out"))
    assert report.segments > 3
    ways: list[dict[str, Any]] = [
        {"processes": 2},
        {"executor": LastFirst(report.segments)},
        {"executor": Twice()},
    ]
    for number, way in enumerate(ways):
        convert_to_mds([], tmp_path / f"{number}", **options, **way)
        assert dataset_bytes(str(tmp_path / f"{number}")) == expected
    for worker in ("1/3", "0/3", "2/3"):
        convert_to_mds([], tmp_path / "array", worker=worker, processes=1, **options)
    assert dataset_bytes(str(tmp_path / "array")) == expected
    convert_to_mds([], tmp_path / "array", finish=True, processes=1, **options)


def test_missing_copies_are_rebuilt(tmp_path: Path) -> None:
    data = write(tmp_path / "in")
    copies = copy(data, tmp_path / "out")
    before = dataset_bytes(copies)
    for name in ("shard.00001.mds.zstd", "shard.00004.mds.zstd"):
        Path(copies, name).unlink()
    assert convert_to_mds([], copies, like=data, **QUIET).rebuilt_shards == 2
    assert dataset_bytes(copies) == before


def test_the_report_counts_all_documents(tmp_path: Path) -> None:
    report = convert_to_mds([], tmp_path / "out", like=write(tmp_path / "in"), **QUIET)
    texts = [text.encode() if text is not None else b"\xffnull" for text in WITH_NULLS]
    assert report.documents == len(texts)
    assert report.text_bytes == sum(map(len, texts))
    assert (report.empty, report.bad, report.columns) == (0, 0, {"id": "str", "text": "str"})


# ---------------------------------------------------------------- what is refused


def rewrite(path: Path) -> None:
    write_parquet(path, [{"id": "d0", "text": "new text"}])


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("change", [rewrite, touch])
def test_a_file_that_changed_since_it_was_indexed_is_named_with_both_versions(
    tmp_path: Path, change: Any
) -> None:
    data = write(tmp_path / "in")
    index_files(data, tmp_path / "index")
    change(Path(data, "part-001.parquet"))
    message = r"part-001\.parquet changed since it was listed: its version was \d+-\d+, and is now"
    with pytest.raises(StoreError, match=message):
        copy(tmp_path / "index", tmp_path / "out")
    assert not Path(tmp_path, "out", "index.json").exists()


def test_an_index_of_other_files_does_not_resume_a_copy(tmp_path: Path) -> None:
    data = write(tmp_path / "in")
    other = write(tmp_path / "other", [text and text.upper() for text in WITH_NULLS])
    convert_until(3, [], tmp_path / "out", like=data, **QUIET)
    with pytest.raises(ConvertError, match=r"different inputs or options|changed after"):
        copy(other, tmp_path / "out")
    copy(data, tmp_path / "out")
    with pytest.raises(
        ConvertError, match=r"different inputs or options|is not the file from which"
    ):
        copy(other, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["n"]}, "so keep cannot be set"),
        ({"id_key": "n"}, "so id_key cannot be set"),
        ({"format": "parquet"}, "so format cannot be set"),
        ({"shard_bytes": 1 << 20}, "so shard_bytes cannot be set"),
        ({"splits": "a=0.5,b=0.5"}, "so splits cannot be set"),
        ({"split": "train"}, "so split cannot be set"),
        ({"errors": "replace"}, "so errors cannot be set"),
        ({"append": True}, "so append cannot be set"),
        ({"skip_bad": True}, "so skip_bad cannot be set"),
        ({"partition_by": "folder"}, "so partition_by cannot be set"),
        ({"tokens_key": "a", "text_key": "b"}, "text_key and tokens_key are both set"),
        ({"tokens_key": "a", "tokenizer": "gpt2"}, "run cloudload count --tokens-key a after"),
        ({"transform": str.upper}, "transform applies only when tokens are counted"),
    ],
)
def test_options_that_contradict_copies_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        copy(write(tmp_path / "in"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", [{"tokens_key": "a"}, {"all_columns": True}])
def test_options_of_an_index_are_refused_without_one(
    tmp_path: Path, option: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"applies only to like\. Set like, too"):
        convert_to_mds(write(tmp_path / "in"), tmp_path / "out", **QUIET, **option)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        (["--partition-by", "folder"], "--partition-by"),
        (["--keep", "n"], "--keep"),
        (["--split", "a=0.5,b=0.5"], "--split"),
        (["--split", "a"], "--split"),
        (["--format", "jsonl"], "--format"),
    ],
)
def test_a_command_that_contradicts_copies_is_told_its_own_options(
    tmp_path: Path, cli: Any, option: list[str], name: str
) -> None:
    printed = cli("convert", "--like", write(tmp_path / "in"), "out", *option, status=1).err
    assert printed == (
        "cloudload: --like is set, which copies the shards of an index as they are, so "
        f"{name} cannot be set. Omit {name}, or convert without --like\n"
    )


def test_inputs_beside_an_index_are_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "in")
    with pytest.raises(ValueError, match="so inputs cannot be set"):
        convert_to_mds(data, tmp_path / "out", like=data, **QUIET)


def test_an_output_within_the_index_or_its_files_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "in")
    index_files(data, tmp_path / "index")
    for like, out in (("in", "in/mds"), ("index", "index"), ("index", "in"), ("index", ".")):
        with pytest.raises(ValueError, match="the output"):
            copy(tmp_path / like, tmp_path / out)


def test_what_is_no_index_is_refused_as_by_a_loader(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", ["a"])
    with pytest.raises(ConvertError, match=r"is not an MDS dataset, because it has no index\.json"):
        copy(tmp_path / "in", tmp_path / "out")
    with pytest.raises(StoreError, match=r"there is nothing|does not exist|no folder"):
        copy(tmp_path / "none", tmp_path / "out")
    with pytest.raises(ConvertError, match="has no column 'content'"):
        copy(write(tmp_path / "parquet"), tmp_path / "out", text_key="content")


def test_a_conversion_of_an_index_as_if_it_were_documents_is_refused(tmp_path: Path) -> None:
    index_files(write(tmp_path / "in"), tmp_path / "index")
    with pytest.raises(ConvertError, match=r"/index has only an index .*pass it as like\. "):
        convert_to_mds(tmp_path / "index", tmp_path / "out", **QUIET)


def test_columns_in_another_order_are_refused(tmp_path: Path) -> None:
    path = Path(write_mds(tmp_path / "mds", ["a"], extra={"id": ("str", ["b"])}), "index.json")
    listed = json.loads(path.read_text())
    for name in ("column_names", "column_encodings", "column_sizes"):
        listed["shards"][0][name].reverse()
    path.write_text(json.dumps(listed))
    with pytest.raises(ConvertError, match="has the columns text, id, which are not sorted by"):
        copy(path.parent, tmp_path / "out")


def test_the_command_copies_an_index(tmp_path: Path, cli: Any) -> None:
    data = write(tmp_path / "in")
    index_files(data, tmp_path / "index")
    assert "mds (parquet)" in cli("convert", "--like", data, tmp_path / "out", "--plan").out
    cli("convert", "--like", tmp_path / "index", tmp_path / "out", "--processes", "1", "--quiet")
    expected = dataset_bytes(copy(data, tmp_path / "other"))
    assert dataset_bytes(str(tmp_path / "out")) == expected
    cli("convert", tmp_path / "again", "--like", data, "--processes", "1", "--quiet")
    assert dataset_bytes(str(tmp_path / "again")) == expected
    assert "inputs is empty" in cli("convert", tmp_path / "x", status=1).err
