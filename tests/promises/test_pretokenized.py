"""A run on pre-tokenized data has the same rows and guarantees as a run on its text."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, Rows, Stream
from cloudload.errors import DatasetError, StreamChangedError, TokenizerError
from cloudload.provenance import open_run
from cloudload.testing import assert_same_rows, check_resume, run_legs
from cloudload.tools.count.count import count_tokens
from testkit import loaders
from testkit.awkward import Case, cases, tokenize
from testkit.corpora import EOS_ID, byte_tokenizer, write_mds
from testkit.examples import EXAMPLES
from testkit.kinds import PACKINGS, THOROUGH, kind_of, loaders_of
from testkit.whole_documents import read_all

FORMATS = [("bytes", "uint16"), ("bytes", "int64"), ("ndarray:uint16", None)]
FORMATS += [("ndarray:int32", None), ("json", None)]


def stored(ids: Sequence[int], encoding: str, dtype: str | None) -> Any:
    """Convert a document's token IDs to a value for a column of `encoding`."""
    if encoding == "json":
        return list(ids)
    array = np.array(ids, dtype or encoding.partition(":")[2])
    return array.tobytes() if encoding == "bytes" else array


def write_tokens(folder: str, case: Case, formats: Sequence[tuple[str, str | None] | None]) -> Any:
    """Write the case's corpus. Streams with a format are written as token IDs in that format."""
    streams = []
    for number, (shards, form) in enumerate(zip(case.streams, formats, strict=False)):
        proportion = case.proportions[number] if case.proportions else None
        repeat = case.repeats[number] if case.repeats else None
        documents: list[Any] = [text for shard in shards for text in shard]
        options: dict[str, Any] = {"shard_samples": [len(shard) for shard in shards]}
        tokens: dict[str, Any] = {}
        if form is not None:
            documents = [stored(case.tokens(text), *form) for text in documents]
            options |= {"column": "tokens", "encoding": form[0]}
            tokens = {"tokens_key": "tokens", "tokens_dtype": form[1]}
        url = write_mds(f"{folder}/{number}", documents, **options)
        name = f"stream-{number}"
        streams.append(Stream(url, proportion=proportion, repeat=repeat, name=name, **tokens))
    return streams


@pytest.mark.parametrize("mixture", ["one corpus", "mixed"])
@pytest.mark.parametrize("packing", PACKINGS)
@THOROUGH
@given(data=st.data())
def test_text_tokenized_beforehand_gives_the_same_rows_on_any_worlds(
    scratch: Path, packing: str, mixture: str, data: st.DataObject
) -> None:
    case = data.draw(cases(**kind_of(packing, mixture, mixture != "mixed"), most_legs=3))
    formats = data.draw(st.lists(st.sampled_from([*FORMATS, None]), min_size=5, max_size=5))
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        expected = run_legs(loaders_of(case, f"{folder}/text"), case.legs)
        streams = write_tokens(f"{folder}/tokens", case, formats)
        open_ids = loaders_of(case, f"{folder}/unused", streams=streams)
        assert_same_rows(run_legs(open_ids, case.legs), expected, f"{formats}")


def documents_of(seed: int, count: int = 40) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, rng.integers(1, 40)).tolist() for _ in range(count)]


def open_ids(data: Any, **options: Any) -> CloudLoader:
    defaults = {"tokenizer": None, "eos": "auto", "tokens_key": "tokens", "num_lanes": 6}
    return loaders.make_loader(data, **{**defaults, **options})


def read_documents(loader: CloudLoader) -> dict[int, tuple[int, ...]]:
    """Read a run of one epoch, and map each sample to its tokens."""
    return {sample: tuple(ids) for (_, sample), ids in read_all(loader).items()}


def write_ids(folder: Path, ids: Sequence[Any], **options: Any) -> str:
    return write_mds(folder, ids, **{"column": "tokens", "encoding": "json", **options})


@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [
        *(("bytes", dtype) for dtype in ("uint8", "int16", "uint16", "int32", "uint32", "int64")),
        *((f"ndarray:{dtype}", None) for dtype in ("uint8", "uint16", "uint32", "uint64", "int64")),
        ("ndarray:int32", "int32"),
        ("ndarray:uint16:12", None),
        ("ndarray:int32:3,4", None),
        ("ndarray", None),
        ("json", None),
    ],
)
def test_every_encoding_that_streaming_writes_is_read(
    tmp_path: Path, encoding: str, dtype: str | None
) -> None:
    from streaming import MDSWriter

    documents = documents_of(1)
    shape = [int(each) for each in encoding.split(":")[2].split(",")] if ":" in encoding[8:] else []
    if shape:
        documents = [(12 * ids)[:12] for ids in documents]
    written = dtype or (encoding.split(":")[1] if ":" in encoding else "")
    columns = {"a": "str", "tokens": encoding, "z": "int"}
    with MDSWriter(out=str(tmp_path / "mds"), columns=columns, size_limit=700) as writer:
        for number, ids in enumerate(documents):
            # the samples of an `ndarray` column may differ in dtype and number of axes
            array = np.array(ids, written or ("int64", "uint8", "uint16")[number % 3])
            array = array.reshape(shape or ((1, -1) if not written and number % 2 else -1))
            value: Any = array
            if encoding in ("bytes", "json"):
                value = array.tobytes() if encoding == "bytes" else ids
            writer.write({"a": "x" * (number % 3), "tokens": value, "z": number})
    options: Any = {"tokens_dtype": dtype, "epochs": 1}
    found = read_documents(open_ids(str(tmp_path / "mds"), **options))
    assert found == {number: tuple(ids) for number, ids in enumerate(documents)}
    with open_ids(str(tmp_path / "mds"), tokenizer=byte_tokenizer(), **options) as own:
        assert own.describe()["tokenizer_backend"] == own.stats().tokenizer_backend == "none"
        assert own.vocab_size == 257
    with open_ids(str(tmp_path / "mds"), **options) as own:
        assert own.describe()["tokenizer"] is None
        with pytest.raises(ValueError, match="the vocabulary size is unknown"):
            _ = own.vocab_size


def test_auto_adds_no_token_to_ids_and_an_id_or_a_token_is_added(tmp_path: Path) -> None:
    data = write_ids(tmp_path / "mds", [[5, 6], []])

    def read(**options: Any) -> dict[int, tuple[int, ...]]:
        return read_documents(open_ids(data, num_lanes=1, epochs=1, **options))

    assert read() == read(tokenizer=byte_tokenizer()) == {0: (5, 6)}
    assert read(bos=7, eos=9) == {0: (7, 5, 6, 9), 1: (7, 9)}
    assert read(tokenizer=byte_tokenizer(), eos="<eos>") == {0: (5, 6, EOS_ID), 1: (EOS_ID,)}
    needed = r"bos or eos is '<eos>', but without a tokenizer it must be None or a token ID"
    with pytest.raises(TokenizerError, match=needed):
        read(eos="<eos>")
    for wrong in (257, 1 << 40):
        with pytest.raises(TokenizerError, match=rf"eos={wrong} is not a token of this tokenizer"):
            read(tokenizer=byte_tokenizer(), eos=wrong)


def test_the_document_of_a_row_is_found_and_traced(tmp_path: Path) -> None:
    ids = [list(tokenize(text)) for text in ("one", "two", "three")]
    extra = {"id": ("str", ["a", "b", "c"])}
    data = write_ids(tmp_path / "mds", ids, extra=extra)
    for tokenizer, texts in (
        (byte_tokenizer(), ["o n e", "t w o", "t h r e e"]),
        (None, [" ".join(map(str, each)) for each in ids]),
    ):
        options: dict[str, Any] = {"tokenizer": tokenizer, "num_lanes": 1, "shuffle": False}
        with open_ids(data, packing="one_per_row", epochs=1, **options) as loader:
            found = loader.trace(next(iter(loader)))
        assert [span.text for span in found] == texts
        assert [span.id for span in found] == ["a", "b", "c"]


@pytest.mark.usefixtures("alone_with_streaming")
def test_a_streaming_dataset_of_ids_is_read_in_workers_and_mixed_with_text(tmp_path: Path) -> None:
    from streaming import StreamingDataset

    documents = documents_of(6)
    values = [stored(ids, "bytes", "int64") for ids in documents]
    data = write_ids(tmp_path / "ids", values, encoding="bytes")
    theirs = StreamingDataset(local=data, batch_size=1)
    options: dict[str, Any] = {"tokens_dtype": "int64", "epochs": 1, "num_workers": 2}
    expected = {number: tuple(ids) for number, ids in enumerate(documents)}
    assert read_documents(open_ids(theirs, **options)) == expected
    text = write_mds(tmp_path / "text", ["a", "b"] * 9)
    streams = [Stream(text, tokens_key=None, eos=None), Stream(data)]
    options |= {"tokenizer": byte_tokenizer(), "eos": None}
    with open_ids(streams, **options) as loader:
        assert sum(len(batch.spans) > 0 for batch in loader) > 3
        assert loader.stats().documents == len(documents) + 18


# ---------------------------------------------------------------- states


def test_a_run_without_a_tokenizer_resumes_after_every_batch(tmp_path: Path) -> None:
    values = [stored(ids, "ndarray:uint16", None) for ids in documents_of(2)]
    data = write_ids(tmp_path / "mds", values, encoding="ndarray:uint16", shard_bytes=600)
    for packing in PACKINGS:
        check_resume(partial(open_ids, data, packing=packing), global_batch=4, num_batches=5)


def test_a_state_names_the_column_and_its_dtype(tmp_path: Path) -> None:
    values = [np.array(ids, "<u4").tobytes() for ids in documents_of(3)]
    extra: Any = {"others": ("bytes", values)}
    data = write_ids(tmp_path / "mds", values, encoding="bytes", extra=extra)
    with open_ids(data, tokens_dtype="uint32") as loader:
        state = loader.state_dict()
    assert state["tokens_key"] == "tokens:uint32"
    for changed in ({"tokens_dtype": "uint16"}, {"tokens_key": "others"}):
        with open_ids(data, **{"tokens_dtype": "uint32", **changed}) as loader:
            with pytest.raises(StreamChangedError, match=r"tokens_key .*saved 'tokens:uint32'"):
                loader.load_state_dict(state)
            loader.load_state_dict(state, on_change={"tokens_key": "accept"})


def test_a_state_of_text_has_no_column_of_ids_and_a_stream_of_ids_may_be_added(
    tmp_path: Path,
) -> None:
    text = write_mds(tmp_path / "text", ["one", "two"] * 9)
    ids = write_ids(tmp_path / "ids", documents_of(4))
    streams = [Stream(text, name="text", proportion=1)]
    options: Any = {"tokenizer": byte_tokenizer(), "eos": "<eos>", "tokens_key": None}
    with open_ids(streams, **options) as loader:
        assert "tokens_key" not in loader.state_dict()
        state = loader.state_dict()
    streams.append(Stream(ids, name="ids", proportion=1, tokens_key="tokens", eos=None))
    with open_ids(streams, **options) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict()["tokens_key"] == ",tokens"
        assert {span[1] for batch in loader.take(3) for span in batch.spans.tolist()} == {0, 1}


# ---------------------------------------------------------------- stripped ends


def strip(ids: list[int], stripped: set[int]) -> list[int]:
    kept = [index for index, token in enumerate(ids) if token not in stripped]
    return ids[kept[0] : kept[-1] + 1] if kept else []


@given(
    documents=st.lists(st.lists(st.sampled_from([0, 1, 2, 7, 8]), max_size=9), min_size=12),
    packing=st.sampled_from(PACKINGS),
    stripped=st.sets(st.integers(0, 3), min_size=1),
    form=st.sampled_from(FORMATS),
    eos=st.sampled_from([None, 2]),
    size=st.sampled_from([1, 2, 5]),
)
@settings(max_examples=EXAMPLES)
def test_stripped_ids_give_the_rows_of_data_without_them(
    *,
    documents: list[list[int]],
    packing: str,
    stripped: set[int],
    form: tuple[str, str | None],
    eos: int | None,
    size: int,
) -> None:
    """With token lengths, without them on one rank, and by index."""
    documents += [[0, 7, 2], [7] * 20]
    encoding, dtype = form
    keys: Any = {"tokens_key": "tokens", "tokens_dtype": dtype}
    options: Any = {**keys, "packing": packing, "epochs": 1, "eos": eos, "num_lanes": 4}
    options |= {"shuffle": False, "bos": 1}
    with tempfile.TemporaryDirectory() as folder:
        datas = [
            write_ids(
                Path(folder, name),
                [stored(ids, encoding, dtype) for ids in written],
                encoding=encoding,
                shard_bytes=200,
            )
            for name, written in (
                ("raw", documents),
                ("plain", [strip(ids, stripped) for ids in documents]),
            )
        ]
        expected = list(open_ids(datas[1], **options))
        options |= {"strip_tokens": [*stripped]}
        found = list(open_ids(datas[0], **options))
        assert loaders.ids_of(found) == loaders.ids_of(expected)
        pairs = zip(found, expected, strict=True)
        assert all(np.array_equal(one.spans, other.spans) for one, other in pairs)
        count_tokens(datas[0], **keys, strip_tokens=[*stripped], processes=1, progress=False)
        check_with_lengths(datas[0], size, loaders.numbered_rows(expected), options)


def check_with_lengths(
    data: str, size: int, expected: dict[int, list[int]], options: dict[str, Any]
) -> None:
    """Check the rows of `Rows`, and of a world of `size` ranks, which share lanes."""
    rows = Rows(data, **{"tokenizer": None, "seq_len": loaders.SEQ_LEN, **options})
    assert [row["input_ids"].tolist() for row in rows] == [
        expected[row] for row in range(len(rows))
    ]
    of_ranks: dict[int, list[int]] = {}
    for rank in range(size):
        world: Any = {"dp_rank": rank, "dp_world_size": size, "batch_size": 1}
        with open_ids(data, **options, **world, lengths="require") as loader:
            of_ranks |= loaders.numbered_rows(loader)
    assert all(of_ranks[row] == expected[row] for row in range(len(rows)))


def test_a_run_with_stripped_ids_resumes_and_its_state_reopens_it(tmp_path: Path) -> None:
    documents = [[0, *ids, 2, 2] for ids in documents_of(5)]
    data = write_ids(tmp_path / "mds", documents, shard_bytes=600)
    options: dict[str, Any] = {"strip_tokens": [2, 0], "eos": 7}
    for packing in PACKINGS:
        make = partial(open_ids, data, packing=packing, **options)
        check_resume(make, global_batch=4, num_batches=5)
    with open_ids(data, **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = next(batches)
    assert state["strip_tokens"] == "0,2"
    assert loader.describe()["strip_tokens"] == (0, 2)
    with open_run(state).loader(batch_size=4) as reopened:
        batch = next(iter(reopened))
        assert batch["input_ids"].tolist() == expected["input_ids"].tolist()
        assert [span.text for span in reopened.trace(batch)]
    with open_ids(data, eos=7) as other:
        with pytest.raises(StreamChangedError, match=r"strip_tokens .*saved '0,2', found ''"):
            other.load_state_dict(state)
        other.load_state_dict(state, on_change={"strip_tokens": "accept"})
        next(iter(other))


def test_lengths_of_stripped_ids_are_not_those_of_all_ids(tmp_path: Path) -> None:
    data = write_ids(tmp_path / "mds", [[0, 5, 2], [6, 2]] * 6)
    keys: Any = {"tokens_key": "tokens", "processes": 1, "progress": False}
    assert count_tokens(data, **keys).tokens == 30  # type: ignore[union-attr]
    assert count_tokens(data, **keys, strip_tokens=[0, 2]).tokens == 12  # type: ignore[union-attr]
    with open_ids(data, strip_tokens=[2], epochs=1) as loader:
        assert loader.describe()["lengths"] is None
    with open_ids(data, strip_tokens=[2, 0], epochs=1) as loader:
        assert loader.describe()["lengths"] is not None


# ---------------------------------------------------------------- wrong input


MINUS_7 = np.array([1, 2, -7], "i4")


@pytest.mark.parametrize(
    ("encoding", "dtype", "value", "message"),
    [
        ("ndarray:int32", None, MINUS_7, r"token 2 of sample 1 .*is -7 as int32"),
        ("json", None, [4, 257], r"token 1 of sample 1 of .* is 257 as int64, .*0 to 256"),
        ("json", None, [[1]], r"sample 1 of .*no list of token IDs in the JSON column 'tokens'"),
        ("json", None, ["a"], r"sample 1 of .*no list of token IDs"),
        ("json", None, [1 << 70], r"sample 1 of .*no list of token IDs"),
        ("json", None, {"a": 1}, r"sample 1 of .*no list of token IDs"),
        ("bytes", "uint16", b"\1\0\2", r"sample 1 of .* has 3 bytes .*multiple of 2, the size of"),
        ("bytes", "uint16", b"\1\0\2\0\0\0\1\1", r"is 257 as uint16.*tokens_dtype is not"),
        ("bytes", "int64", b"\1\0\2\0\0\0\1\1", r"is 7\d+,.* as int64"),
    ],
)
def test_a_wrong_value_names_the_sample(
    tmp_path: Path, encoding: str, dtype: str | None, value: Any, message: str
) -> None:
    first = stored([1, 2], encoding, dtype)
    data = write_ids(tmp_path / "mds", [first, value], encoding=encoding)
    options: Any = {"tokenizer": byte_tokenizer(), "tokens_dtype": dtype, "epochs": 1}
    with pytest.raises(DatasetError, match=message) as caught:
        read_documents(open_ids(data, **options))
    assert f"{tmp_path}/mds/shard.00000.mds" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"column 'tokens' of .*mds has the encoding bytes, .*Set tokens_dtype to .*int64"),
        (
            {"tokens_key": "ids"},
            r"no column 'ids'. Set tokens_key .*Possible columns: tokens, wide",
        ),
        ({"tokens_key": "id"}, r"column 'id' of .* has the encoding str, which cannot contain"),
        (
            {"tokens_key": "wide", "tokens_dtype": "uint16"},
            r"encoding ndarray:int32, but tokens_dtype is 'uint16'\. Omit tokens_dtype",
        ),
        (
            {"tokens_key": None, "tokenizer": byte_tokenizer(), "eos": None},
            r"no column 'text'. .*contains token IDs, pass tokens_key='tokens' and tokens_dtype",
        ),
    ],
)
def test_a_column_that_cannot_be_read_is_named(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    wide = ("ndarray:int32", [np.arange(3, dtype="i4")])
    extra: Any = {"id": ("str", ["a"]), "wide": wide}
    data = write_ids(tmp_path / "mds", [b"\1\0"], encoding="bytes", extra=extra)
    with pytest.raises(DatasetError, match=message):
        open_ids(data, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": str}, "transform and tokens_key are both set"),
        ({"text_key": "body"}, r"text_key is 'body', but all documents are token IDs"),
        ({"tokens_key": None}, r"tokenizer is None, but the documents are text"),
        ({"tokens_dtype": "float32"}, r"tokens_dtype is 'float32'. Use one of"),
        ({"tokens_key": 3}, r"tokens_key is 3. Use the name of a column"),
        ({"tokens_key": "same"}, r"'same' is valid only for a Stream"),
        ({"tokens_key": None, "tokens_dtype": "uint16"}, r"but tokens_key is not set"),
        ({"strip_tokens": [-1]}, r"a token ID in strip_tokens is -1. Use an integer of at least 0"),
        ({"strip_tokens": "2"}, r"a token ID in strip_tokens is '2'. Use an integer"),
        (
            {"strip_tokens": [257], "tokenizer": byte_tokenizer()},
            r"a token ID in strip_tokens is 257, but token IDs are from 0 to 256",
        ),
        (
            {"tokens_key": None, "strip_tokens": [2]},
            r"strip_tokens is \[2\], which applies only to token IDs, but all documents are text",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    data = write_ids(tmp_path / "mds", [[1, 2]])
    with pytest.raises(ValueError, match=message):
        open_ids(data, **options)
