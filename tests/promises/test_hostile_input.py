"""Hostile data and states cause a cloudload error that names the problem, never a crash, a hang, or
wrong rows."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from cloudload import Stream
from cloudload.data.mds.dataset import Dataset
from cloudload.data.mds.shard_entries import INDEX_NAME, Column
from cloudload.data.mds.writer import ShardFormat, encode_sample
from cloudload.data.storage.locations import Location
from cloudload.errors import CacheError, CloudloadError, DatasetError, TokenizerError
from testkit.awkward import tokenize
from testkit.corpora import encode_shard, random_documents, write_mds
from testkit.whole_documents import open_epoch, read_all

EOS_ID = 256


def write_raw(folder: Path, columns: tuple[Column, ...], samples: list[dict[str, Any]]) -> str:
    """Write a dataset of one shard. Its columns, even the text, may have any encodings."""
    form = ShardFormat(columns, None, ())
    raw = encode_shard(form, [encode_sample(columns, sample) for sample in samples])
    folder.mkdir(parents=True)
    (folder / "shard.mds").write_bytes(raw)
    entry = {**form.config(), "samples": len(samples), "zip_data": None}
    entry["raw_data"] = {"basename": "shard.mds", "bytes": len(raw), "hashes": {}}
    (folder / INDEX_NAME).write_text(json.dumps({"version": 2, "shards": [entry]}))
    return str(folder)


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", "py1s", "py2s", "naive", "seekable", None])
@pytest.mark.parametrize("sizes", [[0, 3, 2], [3, 0, 2], [3, 2, 0], [0, 0, 5, 0, 0]])
def test_shards_without_samples_change_nothing(
    tmp_path: Path, sizes: list[int], algorithm: str | None
) -> None:
    texts = ["a", "bb", "ccc", "dddd", ""]
    data = write_mds(tmp_path / "mds", texts, shard_samples=sizes)
    settings = {"shuffle": algorithm is not None, "shuffle_algo": algorithm or "py1e"}
    found = read_all(open_epoch(data, tmp_path / "cache", **settings))
    assert found == {(0, number): [*tokenize(text), EOS_ID] for number, text in enumerate(texts)}


def test_an_empty_stream_among_several_is_no_error_but_a_mixture_and_a_corpus_need_samples(
    tmp_path: Path,
) -> None:
    full, empty = write_mds(tmp_path / "full", ["a", "bb"]), write_mds(tmp_path / "empty", [])
    hollow = write_mds(tmp_path / "hollow", [], shard_samples=[0, 0])
    found = read_all(open_epoch([empty, full, hollow], tmp_path / "cache"))
    assert found == {(1, 0): [*tokenize("a"), EOS_ID], (1, 1): [*tokenize("bb"), EOS_ID]}
    mixed = [Stream(full, proportion=1), Stream(hollow, proportion=1)]
    for data in (empty, [hollow, empty], mixed):
        with pytest.raises(DatasetError, match=r"no samples in .*Convert a corpus first"):
            open_epoch(data, tmp_path / "cache", epochs=None)


@pytest.mark.parametrize(
    ("column", "encoding", "value", "message"),
    [
        ("body", "str", "a", r"no column 'text'\. Set text_key to one of its text columns: body"),
        ("text", "int", 1, r"int, not text, in column 'text'\. It has no text columns"),
        ("id", "str", "a", r"no column 'text'\. It has no text columns"),
        (
            "messages",
            "json",
            [],
            r"no column 'text'\. If column 'messages' contains conversations, pass chat=Chat\(\)",
        ),
        ("text", "json", {}, r"json, not text, in column 'text'"),
    ],
)
def test_a_stream_whose_column_is_missing_or_no_text_is_named(
    tmp_path: Path, column: str, encoding: str, value: Any, message: str
) -> None:
    one = write_mds(tmp_path / "one", ["a"])
    two = write_raw(tmp_path / "two", (Column.of(column, encoding),), [{column: value}])
    with pytest.raises(DatasetError, match=f"two has {message}"):
        open_epoch([one, two], tmp_path / "cache")


BYTES_AND_ID = (Column.of("id", "str"), Column.of("text", "bytes"))


def decode_latin(sample: dict[str, Any]) -> str:
    return str(sample["text"].decode("latin-1"))


def test_bytes_that_are_not_utf8_name_the_document_and_a_transform_may_decode_them(
    tmp_path: Path,
) -> None:
    texts = enumerate([b"fine", b"caf\xe9", b""])
    samples = [{"id": f"doc-{number}", "text": text} for number, text in texts]
    data = write_raw(tmp_path / "mds", BYTES_AND_ID, samples)
    message = (
        r"sample 1 of .*mds/shard\.mds \(id 'doc-1'\) is not UTF-8 .*column contains token "
        r"IDs, pass tokens_key='text' and tokens_dtype\. .*pass a `transform` that decodes"
    )
    with pytest.raises(DatasetError, match=message):
        read_all(open_epoch(data, tmp_path / "cache"))
    found = read_all(open_epoch(data, tmp_path / "cache", transform=decode_latin))
    assert found[0, 1] == [*tokenize("café"), EOS_ID]


def break_second(sample: dict[str, Any]) -> Any:
    return "half a pair: \ud83e" if sample["id"] == "doc-1" else sample["text"]


@pytest.mark.parametrize("backend", ["hf", "auto"])
def test_half_a_surrogate_pair_names_its_document(
    tmp_path: Path, backend: str, tokenizer_folder: Path
) -> None:
    extra = {"id": ("str", ["doc-0", "doc-1", "doc-2"])}
    data = write_mds(tmp_path / "mds", ["a", "b", "c"], extra=extra, compression="zstd")
    settings: dict[str, Any] = {"tokenizer": tokenizer_folder, "eos": "<|endoftext|>"}
    settings |= {"tokenizer_backend": backend, "transform": break_second}
    sample = r"sample 1 of .*mds/shard\.00000\.mds\.zstd \(id 'doc-1'\)"
    returned = r"the transform \S+break_second returned text with a lone surrogate, U\+D83E"
    with pytest.raises(DatasetError, match=rf"{returned}, at character 13, for {sample}"):
        read_all(open_epoch(data, tmp_path / "cache", **settings))


def test_a_document_that_a_tokenizer_cannot_encode_is_named(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"known": 0, "<eos>": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    data = write_mds(tmp_path / "mds", ["known", "known stranger"], extra={"id": ("int", [7, 8])})
    with pytest.raises(
        TokenizerError,
        match=r"sample 1 of .*shard\.00000\.mds \(id '8'\): tokenizers failed on a document: .*UNK",
    ):
        read_all(open_epoch(data, tmp_path / "cache", tokenizer=words))


def test_an_id_that_cannot_be_read_hides_no_error(tmp_path: Path) -> None:
    columns = (Column.of("id", "bytes"), Column.of("text", "bytes"))
    data = write_raw(tmp_path / "mds", columns, [{"id": b"\xff", "text": b"\xff"}])
    index = json.loads((tmp_path / "mds" / INDEX_NAME).read_text())
    raw = (tmp_path / "mds" / "shard.mds").read_bytes()
    # declare the ID as JSON in the index and in the shard, without changing any size
    index["shards"][0]["column_encodings"] = ["json", "bytes"]
    raw = raw.replace(b'"bytes", "bytes"', b'"json",  "bytes"')
    (tmp_path / "mds" / "shard.mds").write_bytes(raw)
    (tmp_path / "mds" / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(DatasetError, match=r"sample 0 of .*shard\.mds is not UTF-8"):
        read_all(open_epoch(data, tmp_path / "cache"))


def make_socket(path: Path) -> None:
    # bind in the folder, because Linux limits a socket's path to 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.getcwd()
        os.chdir(path.parent)
        listener.bind(path.name)
        os.chdir(before)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL)
def test_a_shard_that_is_no_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    data = write_mds(tmp_path / "mds", ["a"])
    shard = tmp_path / "mds" / "shard.00000.mds"
    shard.unlink()
    make(shard)
    refused = r"shard\.00000\.mds (is not a regular file|cannot be opened as a shard)"
    with pytest.raises(DatasetError, match=refused):
        read_all(open_epoch(data, tmp_path / "cache"))


def test_an_index_that_says_other_sizes_or_columns_than_its_shards_teaches_nothing_wrong(
    tmp_path: Path,
) -> None:
    data = write_mds(tmp_path / "mds", ["aa", "bb"], extra={"other": ("str", ["cc", "dd"])})
    sound = json.loads((tmp_path / "mds" / INDEX_NAME).read_text())
    # with swapped column names, every text would be read from the wrong column
    wrong = {"column_names": ["text", "other"], "column_encodings": ["bytes", "str"], "samples": 1}
    for field, value in wrong.items():
        index = {"version": 2, "shards": [{**sound["shards"][0], field: value}]}
        (tmp_path / "mds" / INDEX_NAME).write_text(json.dumps(index))
        with pytest.raises(DatasetError, match=r"has the columns|does not contain the 1 samples"):
            read_all(open_epoch(data, tmp_path / "cache"))


def test_an_index_of_more_documents_than_any_machine_can_order_is_an_error(tmp_path: Path) -> None:
    data = write_mds(tmp_path / "mds", ["a"])
    index = json.loads((tmp_path / "mds" / INDEX_NAME).read_text())
    most = (1 << 32) - 4
    entry = {**index["shards"][0], "samples": most // 4 - 2}
    index["shards"] = [
        {**entry, "raw_data": {"basename": f"{number}.mds", "bytes": most, "hashes": {}}}
        for number in range(1 << 14)
    ]
    (tmp_path / "mds" / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(
        CacheError, match=r"the order of epoch 0 \(17,\d{3},\d{3},\d{3},\d{3} documents\)"
    ):
        read_all(open_epoch(data, tmp_path / "cache"))


def test_an_index_that_is_too_large_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.data.mds.shard_entries.MOST_INDEX_BYTES", 1_000)
    data = write_mds(tmp_path / "mds", random_documents(0, 50), shard_bytes=500)
    with pytest.raises(DatasetError, match="it has more than 1,000 bytes"):
        open_epoch(data, tmp_path / "cache")


def test_nothing_outside_the_cache_is_written(tmp_path: Path) -> None:
    data = write_mds(tmp_path / "mds", random_documents(0, 30), shard_bytes=600, compression="gz")
    before = set(tmp_path.rglob("*"))
    read_all(open_epoch(data, tmp_path / "cache"))
    new = set(tmp_path.rglob("*")) - before
    assert {path.relative_to(tmp_path).parts[0] for path in new} == {"cache"}


def test_a_dataset_does_not_show_the_credentials_of_its_location() -> None:
    dataset = Dataset(Location("https://user:secret@host/data?signature=secret"), (), "0" * 64)
    assert repr(dataset) == "Dataset('https://host/data', 0 shards, 000000000000)"


def nested(depth: int) -> Any:
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


class _Executed:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


def write_metadata(folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / ".metadata").write_bytes(content)


class _Metadata:
    def __init__(self, place: Any) -> None:
        self.storage_data = {_Index(): place}


class _Index:
    def __init__(self) -> None:
        self.fqn = "loader.cloudload"


class _Place:
    def __init__(self, **place: Any) -> None:
        vars(self).update(place)


def metadata(place: Any) -> bytes:
    return pickle.dumps(_Metadata(place))


def place(path: str, offset: int) -> bytes:
    return metadata(_Place(relative_path=path, offset=offset, length=9))


CHECKPOINTS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "random": lambda path: path.write_bytes(random.Random(0).randbytes(1000)),
    "zip": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)),
    "pickle": lambda path: path.write_bytes(b"\x80\x02}q\x00."),
    "deep": lambda path: path.write_text("[" * 100_000),
    "no state": lambda path: path.write_text("[[[{}]]]"),
    "few fields": lambda path: path.write_text('{"version": 3, "cursors": "", "table_rows": 0}'),
    "wrong types": lambda path: path.write_text(
        '{"version": NaN, "cursors": {}, "table_rows": []}'
    ),
    "nested": lambda path: torch.save(nested(200), path),
    "executes": lambda path: torch.save({"loader": _Executed()}, path),
    "empty folder": lambda path: path.mkdir(),
    "empty metadata": lambda path: write_metadata(path, b""),
    "random metadata": lambda path: write_metadata(path, random.Random(1).randbytes(1000)),
    "metadata executes": lambda path: write_metadata(path, pickle.dumps(_Executed())),
    "no places": lambda path: write_metadata(path, metadata(None)),
    "no file": lambda path: write_metadata(path, place("none", 0)),
    "no offset": lambda path: write_metadata(path, place(".metadata", -1)),
    "no torch file": lambda path: write_metadata(path, place(".metadata", 0)),
}


@pytest.mark.parametrize("write", CHECKPOINTS.values(), ids=CHECKPOINTS)
@pytest.mark.parametrize(
    "command", [["trace", "--steps", "1"], ["where", "--sample", "0", "--until", "3"]]
)
def test_a_hostile_checkpoint_is_one_line_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any, command: list[str], write: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "state")
    printed = cli(command[0], "state", *command[1:], status=1)
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith("cloudload: ")
    assert not (tmp_path / "executed").exists()


def test_a_checkpoint_that_holds_itself_is_searched_once(tmp_path: Path) -> None:
    from cloudload.provenance import load_state

    loop: dict[str, Any] = {}
    loop["again"] = [loop, loop]
    for _ in range(40):
        loop = {"left": loop, "right": loop}
    torch.save(loop, tmp_path / "state")
    with pytest.raises(CloudloadError, match="has no cloudload state"):
        load_state(tmp_path / "state")


@pytest.mark.parametrize(
    "sources",
    ["", "[", "[]", "null", '{"streams": 3}', '{"streams": []}', '{"streams": [{}]}', "[" * 9000],
)
def test_sources_that_are_damaged_are_named(
    tmp_path: Path, cli: Any, sources: str, tokenizer_folder: Path
) -> None:
    data = write_mds(tmp_path / "mds", ["a", "bb"])
    state = {**open_epoch(data, tmp_path / "cache").state_dict(), "sources": sources}
    (tmp_path / "state").write_text(json.dumps(state))
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    command = ["trace", tmp_path / "state", "--steps", "1", "--tokenizer", tokenizer_folder]
    assert "cloudload: sources: " in cli(*command, "--global-batch", "4", status=1).err
