"""Data without a text: conversations and other structures are kept as the source has them."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.convert import convert_to_mds
from cloudload.data.mds.record_values import BadRecordError, leave_out_absent
from cloudload.data.mds.shard_entries import Column
from cloudload.data.mds.writer import encode_sample
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.input_records import BlockStart, Fields, Record
from cloudload.tools.convert.readers.plain_rows import RowsUnit
from cloudload.tools.convert.values import values_of
from testkit.conversions import QUIET, convert, convert_and_read, read_dataset, refuse

Rows = list[dict[str, Any]]

MESSAGES: list[Any] = [
    [{"role": "user", "content": "2 + 2 = 狐🦊?"}, {"role": "assistant", "content": "4"}],
    [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"a": 1, "b": [0.5]}}]},
    ],
    [{"role": "user", "content": ""}],
]
ROWS: Rows = [{"messages": messages, "source": "s"} for messages in MESSAGES]
NO_TEXT: dict[str, Any] = {"text_key": None, "keep": ["messages", "source"]}


def write_jsonl(path: Path) -> Any:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS))
    return path


def write_array(path: Path) -> Any:
    path.write_text(json.dumps(ROWS))
    return path


def write_parquet(path: Path) -> Any:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


def write_arrow(path: Path) -> Any:
    pyarrow.feather.write_feather(pyarrow.Table.from_pylist(ROWS), str(path))
    return path


def write_tar(path: Path) -> Any:
    with tarfile.open(path, "w") as tar:
        for number, row in enumerate(ROWS):
            data = json.dumps(row).encode()
            entry = tarfile.TarInfo(f"{number}.json")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def write_mds(path: Path) -> Any:
    from streaming import MDSWriter

    with MDSWriter(out=str(path), columns={"messages": "json", "source": "str"}) as writer:
        for row in ROWS:
            writer.write(row)
    return path


def make_datasets(_: Path) -> Any:
    import datasets

    return datasets.Dataset.from_list(ROWS)


def make_stream(path: Path) -> Any:
    return make_datasets(path).to_iterable_dataset()


SOURCES: dict[str, Callable[[Path], Any]] = {
    "a.jsonl": write_jsonl,
    "a.json": write_array,
    "a.parquet": write_parquet,
    "a.arrow": write_arrow,
    "a.tar": write_tar,
    "mds": write_mds,
    "iterator": lambda _: iter(ROWS),
    "datasets": make_datasets,
    "stream of datasets": make_stream,
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same_conversations(tmp_path: Path, name: str) -> None:
    source = SOURCES[name](tmp_path / name)
    report = convert(source, tmp_path / "out", **NO_TEXT)
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["messages"] for sample in samples] == MESSAGES
    assert [sample["source"] for sample in samples] == ["s"] * 3
    assert [[*sample] for sample in samples] == [["id", "messages", "source"]] * 3
    assert (report.documents, report.empty, report.bad, report.text_bytes) == (3, 0, 0, 0)
    assert report.columns["messages"] == "json"
    assert "text" not in report.columns
    assert next(line for line in report.describe() if "documents" in line) == "  documents  3"


NULLS: Rows = [
    {"x": [{"content": None, "tool_calls": [None, {"a": None, "b": 1}]}], "meta": {"url": None}},
]


def test_json_keeps_its_nulls_and_tables_lose_those_of_structs_in_lists(tmp_path: Path) -> None:
    """A table cannot tell a field that is null from a field that an item of a list lacks."""
    options: dict[str, Any] = {"text_key": None, "keep": ["x:json", "meta"]}
    kept = convert_and_read(write_rows(tmp_path / "a.jsonl", NULLS), tmp_path / "out-a", **options)
    assert [{name: row[name] for name in ("x", "meta")} for row in kept] == NULLS
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(NULLS), tmp_path / "a.parquet")
    [row] = convert_and_read(tmp_path / "a.parquet", tmp_path / "out-b", **options)
    assert row["x"] == [{"tool_calls": [None, {"b": 1}]}]
    assert row["meta"] == {"url": None}


def write_rows(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_structs_with_times_lose_their_absent_fields_too(tmp_path: Path) -> None:
    rows: Rows = [{"x": [{"at": date(2026, 11, 27), "by": None}, {"at": None, "by": "me"}]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    [row] = convert_and_read(tmp_path / "a.parquet", text_key=None, keep=["x"])
    assert row["x"] == [{"at": "2026-11-27"}, {"by": "me"}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
)


@given(JSON)
def test_only_null_fields_of_mappings_in_lists_are_left_out(value: Any) -> None:
    found = leave_out_absent(value)

    def nulls(value: Any, *, is_in_list: bool = False) -> int:
        if isinstance(value, dict):
            own = sum(item is None for item in value.values()) if is_in_list else 0
            return own + sum(nulls(item, is_in_list=is_in_list) for item in value.values())
        return sum(nulls(item, is_in_list=True) for item in value) if isinstance(value, list) else 0

    def size(value: Any) -> int:
        items = value.values() if isinstance(value, dict) else value
        return 1 + sum(map(size, items)) if isinstance(value, dict | list) else 1

    assert nulls(found) == 0
    assert size(found) == size(value) - nulls(value)
    assert leave_out_absent(found) == found


# ---------------------------------------------------------------- other shapes


def test_token_ids_texts_and_preferences_are_documents_too(tmp_path: Path) -> None:
    rows: Rows = [{"tokens": [1, 2], "prompt": "", "chosen": [], "score": 0.5}]
    path = write_rows(tmp_path / "a.jsonl", rows)
    for number, keep in enumerate((["tokens"], ["prompt:str", "chosen", "score:float64"])):
        report = convert(path, tmp_path / str(number), text_key=None, keep=keep)
        [sample] = read_dataset(str(tmp_path / str(number)), tmp_path)
        names = [each.partition(":")[0] for each in keep]
        assert sample == {"id": "a.jsonl:1"} | {name: rows[0][name] for name in names}
        assert (report.documents, report.empty) == (1, 0)


def test_token_ids_without_text_are_read_by_a_loader(tmp_path: Path) -> None:
    from testkit.loaders import make_loader

    path = write_rows(tmp_path / "a.jsonl", [{"tokens": [number] * 8} for number in range(64)])
    convert(path, tmp_path / "out", text_key=None, keep=["tokens"])
    loader = make_loader(
        str(tmp_path / "out"),
        tokenizer=None,
        eos=None,
        tokens_key="tokens",
        seq_len=8,
        epochs=1,
    )
    with loader:
        rows = [row.tolist() for batch in loader for row in batch["input_ids"]]
    assert sorted(rows) == [[number] * 8 for number in range(64)]


def test_strings_become_the_first_kept_field(tmp_path: Path) -> None:
    convert(iter(["a", "b"]), tmp_path / "out", text_key=None, keep=["prompt:str"])
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["prompt"] for sample in samples] == ["a", "b"]


def test_a_large_row_ends_its_block_also_if_it_is_nested() -> None:
    for value in ([{"content": "x" * 60}], [1] * 7, np.zeros(7), ({"a": ["x" * 51]},)):
        rows = [{"m": value, "unused": "y" * 999} for _ in range(9)]
        blocks = list(RowsUnit("row", rows).blocks(BlockStart(), 100, Fields(["m", "id"])))
        assert [len(list(block.records("m"))) for block in blocks] == [2, 2, 2, 2, 1]


# ---------------------------------------------------------------- errors


def test_without_text_something_must_be_kept(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl")
    refuse("keep is empty and text_key is None, so there", path, error=ValueError, text_key=None)
    clash: dict[str, Any] = {"text_key": None, "keep": ["messages", "id"]}
    refuse(r"cannot keep \['id'\], because `id` is always", path, error=ValueError, **clash)
    counted: dict[str, Any] = {**NO_TEXT, "tokenizer": "gpt2"}
    refuse("text_key .--text-key. is None. Pass chat=Chat", path, error=ValueError, **counted)


ADVICE = (
    r"To keep conversations, set text_key=None and keep \['messages', 'tools'\] "
    r"\(--keep messages --keep tools\)"
)


@pytest.mark.parametrize("name", ["jsonl", "parquet", "mds", "iterator"])
def test_the_error_for_a_missing_text_names_the_flags_for_conversations(
    tmp_path: Path, name: str
) -> None:
    row = {"id": "1", "tools": [{"name": "f"}], "messages": MESSAGES[0]}
    source: Any = tmp_path / f"a.{name}"
    if name == "jsonl":
        write_rows(source, [row])
    elif name == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), source)
    elif name == "iterator":
        source = iter([row])
    else:
        convert(iter([row]), source, text_key=None, keep=["messages", "tools"])
    refuse(ADVICE, source, tmp_path / "out")


def test_the_error_for_other_data_does_not_mention_conversations(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"body": "x"}])
    assert "conversations" not in refuse("name of the field that has the text", path)


@pytest.mark.parametrize("row", [{"source": "s"}, {"source": "s", "messages": None}])
def test_a_record_without_the_first_kept_field_is_bad(tmp_path: Path, row: dict[str, Any]) -> None:
    path = write_rows(tmp_path / "a.jsonl", [row])
    keep = ["messages:json", "source"]
    refuse(
        r"no value for 'messages', the first field to keep. Its fields are: (messages, )?source. "
        r"Begin keep \(--keep\) with a field that each record has",
        path,
        tmp_path / "out",
        text_key=None,
        keep=keep,
    )
    write_rows(path, [row, *ROWS])
    rejects = tmp_path / "rejects.jsonl"
    report = convert(
        path, tmp_path / "out", text_key=None, keep=keep, skip_bad=True, rejects=rejects
    )
    assert (report.documents, report.bad) == (3, 1)
    [reject] = map(json.loads, rejects.read_text().splitlines())
    assert (reject["place"], json.loads(reject["record"])) == ("1", row)
    assert list(report.causes) == [
        "the record has no value for 'messages', the first field to keep"
    ]


def test_the_first_kept_field_may_be_in_the_path(tmp_path: Path) -> None:
    (tmp_path / "in" / "lang=en").mkdir(parents=True)
    write_rows(tmp_path / "in" / "lang=en" / "a.jsonl", ROWS)
    [sample, *_] = convert_and_read(
        tmp_path / "in", tmp_path / "out", text_key=None, keep=["lang", "messages"]
    )
    assert (sample["lang"], sample["messages"]) == ("en", MESSAGES[0])


def test_a_readme_among_conversations_is_no_document(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "a.jsonl")
    (tmp_path / "in" / "README.md").write_text("# A data set\n")
    report = convert(tmp_path / "in", **NO_TEXT)
    assert (report.documents, report.hidden_names) == (3, ("README.md",))
    refuse(
        "README.md.*: the file is plain text, but text_key is None. To leave files out",
        [tmp_path / "in/a.jsonl", tmp_path / "in/README.md"],
        tmp_path / "out2",
        **NO_TEXT,
    )
    lines = convert(
        tmp_path / "in" / "README.md",
        tmp_path / "lines",
        format="lines",
        text_key=None,
        keep=["prompt"],
    )
    assert lines.documents == 1


def test_values_that_json_cannot_express_are_bad(tmp_path: Path) -> None:
    rows = [{"messages": [{"content": b"\xff"}], "source": "s"}]
    refuse("'messages' cannot be written as JSON .*bytes", iter(rows), tmp_path / "out", **NO_TEXT)


HALF = (
    r'{"messages": [{"role": "user", "content": "a\ud83d"}, {"role": "x\udc00"}], "source": "🦊"}'
)


def test_unpaired_surrogates_within_json_are_bad_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(HALF + "\n")
    refuse("the field 'messages' has an unpaired surrogate", path, tmp_path / "out", **NO_TEXT)
    report = convert(path, tmp_path / "out", errors="replace", **NO_TEXT)
    [sample] = read_dataset(str(tmp_path / "out"), tmp_path)
    assert sample["messages"] == [{"role": "user", "content": "a\ufffd"}, {"role": "x\ufffd"}]
    assert (sample["source"], report.replaced) == ("🦊", 1)


def has_surrogate(value: Any) -> bool:
    return re.search("[\ud800-\udfff]", json.dumps(value, ensure_ascii=False)) is not None


TEXTS = st.text(st.characters() | st.sampled_from("\\ud8\ud83d\ude00🦊狐한"), max_size=6)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@given(ANY_JSON.filter(lambda value: value is not None), st.sampled_from(["strict", "replace"]))
def test_any_json_is_kept_unless_it_has_unpaired_surrogates(value: Any, errors: Any) -> None:
    config = ConvertConfig(text_key=None, keep=("x:json",), errors=errors)
    columns = (Column.of("x", "json"),)
    record = Record(RowsUnit("row", []), "1", {"x": value})  # type: ignore[arg-type]
    if errors == "strict" and has_surrogate(value):
        with pytest.raises(BadRecordError, match="the field 'x' has an unpaired surrogate"):
            values_of(config, columns, record)
        return
    found = values_of(config, columns, record)
    stored = json.loads(encode_sample(columns, found.by_column)[4:])
    assert found.is_replaced == has_surrogate(value)
    assert not has_surrogate(stored)
    if not found.is_replaced:
        assert stored == value


def test_a_text_that_looks_like_an_escaped_surrogate_is_kept(tmp_path: Path) -> None:
    rows: Rows = [{"messages": [{"content": "\\ud83d"}, {"content": "🦊\\"}]}]
    [sample] = convert_and_read(
        write_rows(tmp_path / "a.jsonl", rows), text_key=None, keep=["messages"]
    )
    assert sample["messages"] == rows[0]["messages"]


# ---------------------------------------------------------------- the command line


def test_the_command_converts_conversations(tmp_path: Path, cli: Any) -> None:
    path = write_jsonl(tmp_path / "a.jsonl")
    command = ["convert", path, tmp_path / "out", "--text-key", "none", "--keep", "messages:json"]
    said = cli(*command).out
    assert "  columns    id: str, messages: json\n" in said
    assert "  documents  3\n" in said
    assert "already complete" in cli(*command).out
    info = cli("info", tmp_path / "out").out
    assert "messages  json" in info
    assert "of UTF-8" not in info


def test_the_error_of_the_command_names_its_flags(tmp_path: Path, cli: Any) -> None:
    path = write_jsonl(tmp_path / "a.jsonl")
    said = cli("convert", path, tmp_path / "out", status=1).err
    assert "set --text-key none and keep ['messages'] (--keep messages)" in said
    said = cli("convert", path, tmp_path / "out", "--text-key", "none", status=1).err
    assert "--keep is empty and --text-key is None" in said


def test_the_order_of_kept_fields_does_not_change_the_samples(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl")
    for number, keep in enumerate((["messages", "source"], ["source", "messages"])):
        convert_to_mds(path, tmp_path / str(number), text_key=None, keep=keep, **QUIET)
    one, other = (read_dataset(str(tmp_path / name), tmp_path) for name in "01")
    assert one == other


def render(sample: dict[str, Any]) -> str:
    return " ".join(message["content"] for message in sample["messages"] if "content" in message)


def test_tokens_of_what_a_transform_renders_are_counted_while_converting(tmp_path: Path) -> None:
    from testkit.corpora import byte_tokenizer
    from testkit.counted import count

    path = write_jsonl(tmp_path / "a.jsonl")
    counted: dict[str, Any] = {"tokenizer": byte_tokenizer(), "transform": render}
    report = convert(path, tmp_path / "one", **NO_TEXT, **counted)
    assert report.tokens == sum(len(render(row).encode()) for row in ROWS)
    convert(path, tmp_path / "two", **NO_TEXT)
    assert count(tmp_path / "two", **counted).tokens == report.tokens
