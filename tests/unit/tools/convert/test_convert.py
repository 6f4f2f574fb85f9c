"""A conversion writes each document once and in order, in the same raw shards as `MDSWriter`."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudload.data.mds.codecs import decompress
from cloudload.data.mds.shard_table import parse_index
from cloudload.errors import StoreError
from cloudload.tools.convert.config import SplitShares, hash_document, parse_shares
from testkit.conversions import (
    convert,
    convert_and_read,
    convert_lines,
    convert_texts,
    dataset_bytes,
    leave_out_samples_hashes,
    read_dataset,
    refuse,
    refuse_lines,
    texts,
    write_corpus,
)
from testkit.examples import EXAMPLES


def test_the_block_size_does_not_show_in_the_output(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    for size in (1, 1000, 1 << 20):
        convert(corpus, tmp_path / f"out{size}", block_bytes=size, shard_bytes=50_000)
    assert (
        dataset_bytes(str(tmp_path / "out1"))
        == dataset_bytes(str(tmp_path / "out1000"))
        == dataset_bytes(str(tmp_path / f"out{1 << 20}"))
    )


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_raw_shards_and_index_are_those_of_mdswriter(
    tmp_path: Path, compression: str | None
) -> None:
    from streaming import MDSWriter

    corpus = write_corpus(tmp_path / "corpus")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    convert(
        corpus,
        ours,
        keep=["n:int"],
        compression=compression,
        hashes=("sha1", "xxh64"),
        shard_bytes=30_000,
    )
    columns = {"text": "str", "id": "str", "n": "int"}
    with MDSWriter(
        out=str(theirs),
        columns=columns,
        compression=compression,
        hashes=["sha1", "xxh64"],
        size_limit=30_000,
    ) as writer:
        for sample in read_dataset(str(ours), tmp_path):
            writer.write(sample)
    leave_out_samples_hashes(ours)
    indexes = [json.loads((folder / "index.json").read_text()) for folder in (ours, theirs)]
    for one, other in zip(*(index["shards"] for index in indexes), strict=True):
        raw = [_raw_shard(folder, entry) for folder, entry in ((ours, one), (theirs, other))]
        assert raw[0] == raw[1]
        for entry in (one, other):
            # the writers may use different versions of zstd, whose compressed data differ
            (entry["zip_data"] or {}).update(bytes=0, hashes={})
    assert indexes[0] == indexes[1]
    if compression is None:
        assert (ours / "index.json").read_bytes() == (theirs / "index.json").read_bytes()


def _raw_shard(folder: Path, entry: dict[str, Any]) -> bytes:
    if entry["zip_data"] is None:
        return Path(folder, entry["raw_data"]["basename"]).read_bytes()
    return decompress(
        "zstd", (folder / entry["zip_data"]["basename"]).read_bytes(), entry["raw_data"]["bytes"]
    )


def test_a_document_larger_than_a_shard_has_a_shard_to_itself(tmp_path: Path) -> None:
    convert_lines(
        tmp_path,
        [json.dumps({"text": text}) for text in ("x" * 5000, "a", "b", "y" * 5000)],
        shard_bytes=1500,
    )
    assert [
        info.samples for info in parse_index((tmp_path / "out" / "index.json").read_bytes(), "out")
    ] == [1, 2, 1]


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=30
    ),
    ends=st.sampled_from(["\n", "\r\n"]),
    last_end=st.booleans(),
    block_bytes=st.integers(1, 200),
    shard_bytes=st.integers(1024, 1400),
)
def test_every_document_is_written_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    lines: list[str],
    ends: str,
    last_end: bool,
    block_bytes: int,
    shard_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    documents = [json.dumps({"text": "x" + line}, ensure_ascii=False) for line in lines]
    (folder / "a.jsonl").write_bytes((ends.join(documents) + (ends if last_end else "")).encode())
    convert(folder / "a.jsonl", folder / "out", block_bytes=block_bytes, shard_bytes=shard_bytes)
    assert texts(str(folder / "out"), folder) == ["x" + line for line in lines]


def test_inputs_keep_the_order_of_the_arguments(tmp_path: Path) -> None:
    for name in ("z", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.csv").write_text(f"text\n{name}1\n")
        (tmp_path / name / "2.jsonl").write_text(f'{{"text": "{name}2"}}')
    samples = convert_and_read([tmp_path / "z", tmp_path / "a"], tmp_path / "out")
    assert [sample["text"] for sample in samples] == ["z1", "z2", "a1", "a2"]
    assert [sample["id"] for sample in samples] == [
        "0/1.csv:2",
        "0/2.jsonl:1",
        "1/1.csv:2",
        "1/2.jsonl:1",
    ]


def test_globs_stay_within_a_folder_unless_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.txt", "b.md", "sub/c.txt", "sub/deep/d.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    monkeypatch.chdir(tmp_path / "in")
    for number, (glob, found) in enumerate(
        {
            "*.txt": ["a.txt"],
            "**/*.txt": ["a.txt", "sub/c.txt", "sub/deep/d.txt"],
            "sub/[!d].*": ["sub/c.txt"],
        }.items()
    ):
        assert convert_texts(glob, tmp_path / f"relative{number}") == found
        assert convert_texts(str(tmp_path / "in" / glob), tmp_path / f"absolute{number}") == found


def test_a_split_is_a_folder_below_the_output(tmp_path: Path) -> None:
    convert_lines(tmp_path, ['{"text": "a"}'], split="train")
    convert_lines(tmp_path, ['{"text": "b"}'], split="test")
    assert texts(str(tmp_path / "out" / "train"), tmp_path) == ["a"]
    assert texts(str(tmp_path / "out" / "test"), tmp_path) == ["b"]


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"segment_bytes": 40}], ids=str)
def test_a_dataset_that_would_hide_its_splits_is_refused(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    for split in ("train", "val", "en/test"):
        convert_lines(tmp_path, ['{"text": "a"}'], split=split)
    before = sorted((tmp_path / "out").rglob("*"))
    said = refuse_lines("", tmp_path, ['{"text": "b"}'] * 9, **options)
    assert said == (
        f"{tmp_path}/out has datasets in its subfolders: en/test, train, val. A dataset in "
        f"{tmp_path}/out itself would hide them. Set split (--split NAME) to write to a subfolder, "
        "or choose another output"
    )
    assert sorted((tmp_path / "out").rglob("*")) == before
    convert_lines(tmp_path, ['{"text": "b"}'], split="more")
    assert texts(str(tmp_path / "out" / "train"), tmp_path) == ["a"]


def test_a_dataset_that_already_has_an_index_may_be_written_again(tmp_path: Path) -> None:
    convert_lines(tmp_path, ['{"text": "a"}'])
    shutil.copytree(tmp_path / "out", tmp_path / "train")
    (tmp_path / "train").rename(tmp_path / "out" / "train")
    assert convert_lines(tmp_path, ['{"text": "a"}']).already_complete
    convert_lines(tmp_path, ['{"text": "b"}'], overwrite=True)
    assert texts(str(tmp_path / "out"), tmp_path) == ["b"]
    assert texts(str(tmp_path / "out" / "train"), tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["text"]}, "cannot keep"),
        ({"keep": ["n:pkl"]}, "cannot keep 'n' as 'pkl'"),
        ({"compression": "lz4"}, "compression is 'lz4'"),
        ({"hashes": ["md6"]}, "no hash named 'md6'"),
        ({"hashes": ["shake_128"]}, "no hash named 'shake_128' with a fixed size"),
        ({"hashes": ["xxh64_hexdigest"]}, "no hash named 'xxh64_hexdigest'"),
        ({"shard_bytes": 1 << 32}, "shard_bytes is 4,294,967,296"),
        ({"processes": -1}, "processes is -1"),
        ({"split": "../x"}, "split is '../x'"),
        ({"format": "xml"}, "format is 'xml'. Use one of"),
    ],
)
def test_a_wrong_argument_is_a_value_error_that_names_it(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    refuse_lines(message, tmp_path, ['{"text": "a"}'], **options, error=ValueError)


@pytest.mark.parametrize(
    ("line", "options"),
    [("", {}), ("", {"splits": "a=0.5,b=0.5"}), ("", {"segment_bytes": 10}), ("{}", {})],
)
def test_a_conversion_without_documents_leaves_no_folder(
    tmp_path: Path, line: str, options: dict[str, Any]
) -> None:
    refuse_lines("no documents in|has no field 'text'", tmp_path, [line] * 50, **options)
    assert [each.name for each in tmp_path.iterdir()] == ["in"]


def test_what_cannot_be_converted_at_all_is_said_at_once(tmp_path: Path) -> None:
    refuse("no-such", tmp_path / "no-such", error=StoreError)
    refuse_lines(
        r"no documents in a\.jsonl \(empty documents: 1, bad records: 0\)",
        tmp_path,
        ['{"text": ""}'],
    )
    refuse_lines(
        "encoding of the field 'nope', because no record near the start of the input has",
        tmp_path,
        ['{"text": "a"}'],
        keep=["nope"],
    )
    refuse("is inside the input", tmp_path / "in", tmp_path / "in" / "mds", error=ValueError)
    refuse(
        "is in the inputs twice",
        [tmp_path / "in", tmp_path / "in" / "a.jsonl"],
        tmp_path / "out2",
        error=ValueError,
    )


# ---------------------------------------------------------------- splits by hash


HASHES = 1 << 64
IDS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


def test_shares_become_exact_limits() -> None:
    assert parse_shares("train=0.999,val=0.001") == SplitShares(
        ("train", "val"), (999 * HASHES // 1000, HASHES)
    )
    assert parse_shares(" a = .5 , b=0.25, c=0.250").limits == (
        HASHES // 2,
        3 * HASHES // 4,
        HASHES,
    )
    assert parse_shares("all=1") == SplitShares(("all",), (HASHES,))
    assert parse_shares(",".join(f"s{n}=0.1" for n in range(10))).limits[6] == 7 * HASHES // 10


@settings(max_examples=EXAMPLES)
@given(weights=st.lists(st.integers(1, 10**6), min_size=1, max_size=9))
def test_a_split_has_its_share_of_the_hashes_to_within_one(weights: list[int]) -> None:
    total = 10**7
    weights = [*weights, total - sum(weights)]
    spec = ",".join(f"s{place}={weight / total:.7f}" for place, weight in enumerate(weights))
    shares = parse_shares(spec)
    for weight, low, high in zip(weights, (0, *shares.limits), shares.limits, strict=False):
        assert abs((high - low) - Fraction(weight, total) * HASHES) < 1


@settings(max_examples=EXAMPLES)
@given(
    documents=st.lists(st.tuples(IDS, st.text("ab", max_size=3)), max_size=20),
    seed=st.integers(-(10**200), 10**200),
    data=st.data(),
)
def test_a_document_is_in_the_same_split_in_any_order_and_number_of_inputs(
    documents: list[tuple[str | None, str]], seed: int, data: st.DataObject
) -> None:
    shares = parse_shares("train=0.5,val=0.3,test=0.2")
    expected = {document: shares.choose(*document, seed) for document in documents}
    for document in data.draw(st.permutations(documents)):
        assert shares.choose(*document, seed) == expected[document]
    wider = parse_shares("train=0.6,val=0.2,test=0.2")
    for document, split in expected.items():
        if split == "train":
            assert wider.choose(*document, seed) == "train"


@settings(max_examples=EXAMPLES)
@given(own_id=st.text("ab", max_size=3), texts=st.tuples(st.text("ab"), st.text("ab")))
def test_the_id_alone_decides_if_there_is_one(own_id: str, texts: tuple[str, str]) -> None:
    assert hash_document(own_id, texts[0]) == hash_document(own_id, texts[1])
    assert hash_document(None, own_id) != hash_document(own_id, own_id)


def test_hashes_never_change() -> None:
    assert hash_document("doc-7", "") == 7772595184126788166
    assert hash_document(None, "doc-7") == 5333051806143263914
    assert hash_document("doc-7", "", seed=-1) == 3090303447996480119
    assert hash_document("doc-7", "", seed=10**100) == 17654375302936615071


def test_shares_are_met_and_seeds_are_independent() -> None:
    shares = parse_shares("train=0.9,val=0.1")
    splits = [
        [shares.choose(f"doc-{number}", "", seed) for number in range(20_000)] for seed in (0, 1)
    ]
    for names in splits:  # within six standard deviations of 2,000
        assert abs(names.count("val") - 2000) < 6 * (20_000 * 0.09) ** 0.5
    both = sum(one == other == "val" for one, other in zip(*splits, strict=True))
    assert abs(both - 200) < 6 * 200**0.5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("train", "have no share for 'train'"),
        ("train=0.9,", "have no share for ''"),
        ("", "have no share for ''"),
        ("train=0.9,val=0.2", "add up to 1.1, not 1"),
        ("train=0.999,val=0.0010000000001", r"add up to 1\.0000000000001, not 1"),
        ("train=0.5,train=0.5", "have 'train' twice"),
        ("train=1,val=0", "the share of 'val' in .* is '0'. Use a number above 0"),
        ("train=1.5,val=-0.5", "the share of 'train' in .* is '1.5'"),
        ("train=nan,val=1", "the share of 'train' in .* is 'nan'"),
        ("train=1e400,val=1", "the share of 'train'"),
        ("train=0.9 0.1,val=1", "the share of 'train'"),
        ("../train=1", "have the invalid name '../train'"),
        ("=1", "have the invalid name ''"),
        (".convert=1", "have the invalid name '.convert'"),
    ],
)
def test_a_wrong_spec_is_a_value_error_that_names_it(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        parse_shares(spec)
    assert repr(spec) in str(raised.value)
