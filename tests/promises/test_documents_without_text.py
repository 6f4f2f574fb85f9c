"""Documents without a text have all that the converter promises: the same bytes on every engine and
after any interruption, splits, appends, and repairs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cloudload import Chat
from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError
from cloudload.testing import Leg, run_legs
from testkit.chat_files import KEEP, Row, list_rows, write_chats, written
from testkit.conversations import chat_tokenizer, conversations, expected_document
from testkit.conversions import (
    QUIET,
    convert_until,
    dataset_bytes,
    digest,
    leave_out_samples_hashes,
    read_dataset,
    write_lines,
)
from testkit.loaders import ranks
from testkit.segments import convert_every_way

OPTIONS: dict[str, Any] = {**QUIET, "text_key": None, "keep": KEEP}
OPTIONS |= {"shard_bytes": 20_000, "block_bytes": 5_000}
SEGMENTS: dict[str, Any] = {**OPTIONS, "segment_bytes": 40_000}


@pytest.fixture(scope="module")
def corpus(module_folder: Path) -> Path:
    write_chats(module_folder / "corpus")
    return module_folder / "corpus"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """The rows of the corpus."""
    return list_rows()


@pytest.fixture(scope="module")
def objects(corpus: Path) -> dict[str, str]:
    """The hash of each object of a conversion in one process."""
    report = convert_to_mds(corpus, corpus.parent / "whole", **SEGMENTS)
    assert (report.segments, report.documents, report.text_bytes) == (9, 720, 0)
    return dataset_bytes(str(corpus.parent / "whole"))


def test_json_columns_have_the_values_of_the_source(
    corpus: Path, rows: list[Row], objects: dict[str, str], tmp_path: Path
) -> None:
    samples = read_dataset(str(corpus.parent / "whole"), tmp_path)
    assert samples == [written(row) for row in rows]
    assert objects


def test_streaming_reads_the_same_samples(corpus: Path, rows: list[Row], tmp_path: Path) -> None:
    from streaming import StreamingDataset

    convert_to_mds(corpus, tmp_path / "out", **OPTIONS)
    dataset = StreamingDataset(local=str(tmp_path / "out"), shuffle=False, batch_size=1)
    assert [dataset[place] for place in range(len(rows))] == [written(row) for row in rows]


def test_the_bytes_are_those_of_streamings_writer(
    corpus: Path, rows: list[Row], tmp_path: Path
) -> None:
    from streaming import MDSWriter

    convert_to_mds(corpus, tmp_path / "out", **{**OPTIONS, "compression": None})
    leave_out_samples_hashes(tmp_path / "out")
    columns = {"id": "str", "messages": "json", "source": "json", "tools": "json"}
    ours = tmp_path / "streaming"
    with MDSWriter(out=str(ours), columns=columns, hashes=["xxh64"], size_limit=20_000) as writer:
        for row in rows:
            writer.write(written(row))
    assert digest(tmp_path / "out") == digest(ours)


def test_every_engine_writes_the_same_objects(
    corpus: Path, objects: dict[str, str], tmp_path: Path
) -> None:
    for out, _ in convert_every_way(corpus, str(tmp_path), 9, **SEGMENTS):
        assert dataset_bytes(out) == objects
    for worker in ("2/3", "0/3", "1/3"):
        report = convert_to_mds(corpus, tmp_path / "array", worker=worker, **SEGMENTS)
    assert report.unfinished_segments == 0
    assert dataset_bytes(str(tmp_path / "array")) == objects


@pytest.mark.parametrize("stop", [1, 4, 11])
@pytest.mark.parametrize("options", [OPTIONS, SEGMENTS], ids=["one segment", "segments"])
def test_an_interrupted_conversion_continues_to_the_same_objects(
    corpus: Path, tmp_path: Path, options: dict[str, Any], stop: int
) -> None:
    convert_to_mds(corpus, tmp_path / "whole", **options)
    for _ in range(2):
        convert_until(stop, corpus, tmp_path / "out", **options)
    convert_to_mds(corpus, tmp_path / "out", **options)
    assert dataset_bytes(str(tmp_path / "out")) == dataset_bytes(str(tmp_path / "whole"))


def test_finishing_takes_the_missing_text_key_from_the_plan(corpus: Path, tmp_path: Path) -> None:
    convert_to_mds(corpus, tmp_path / "out", worker="0/2", **SEGMENTS)
    with pytest.raises(ConvertError, match="4 of 9 segments are missing"):
        convert_to_mds(corpus, tmp_path / "out", finish=True, **QUIET)
    convert_to_mds(corpus, tmp_path / "out", worker="1/2", **SEGMENTS)
    report = convert_to_mds(corpus, tmp_path / "out", finish=True, **QUIET)
    assert (report.documents, report.already_complete) == (720, True)


def test_a_rerun_finds_the_same_dataset_and_refuses_another(
    corpus: Path, objects: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(corpus.parent / "whole", out)
    assert convert_to_mds(corpus, out, **SEGMENTS).already_complete
    with pytest.raises(ConvertError, match="text_key was None and is now 'source'"):
        convert_to_mds(corpus, out, **{**SEGMENTS, "text_key": "source", "keep": KEEP[:2]})
    with pytest.raises(ConvertError, match=r"keep was .* and is now"):
        convert_to_mds(corpus, out, **{**SEGMENTS, "keep": KEEP[:1]})
    missing = sorted(out.rglob("*.mds.zstd"))[::5]
    for path in missing:
        path.unlink()
    assert convert_to_mds(corpus, out, **SEGMENTS).rebuilt_shards == len(missing)
    assert dataset_bytes(str(out)) == objects


def test_documents_are_appended_with_the_same_columns(
    corpus: Path, rows: list[Row], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(corpus.parent / "whole", out)
    write_chats(tmp_path / "more", 20, first_seed=7)
    report = convert_to_mds(tmp_path / "more", out, append=True, **SEGMENTS)
    assert (report.documents, report.added_documents) == (780, 60)
    assert report.columns == {"id": "str", "messages": "json", "tools": "json", "source": "json"}
    assert read_dataset(str(out), tmp_path) == [written(row) for row in [*rows, *list_rows(20, 7)]]


@pytest.mark.parametrize("id_key", ["id", "none"])
def test_a_conversation_is_always_in_the_same_split(
    corpus: Path, rows: list[Row], tmp_path: Path, id_key: str
) -> None:
    options = SEGMENTS | {"splits": "train=0.8,val=0.2", "id_key": id_key}
    found: list[dict[str, str]] = []
    for number, source in enumerate([corpus, [corpus / "c.parquet", corpus / "a.jsonl"]]):
        out = tmp_path / str(number)
        convert_to_mds(source, out, **options)
        found.append(
            {
                json.dumps(sample["messages"]): split
                for split in ("train", "val")
                for sample in read_dataset(f"{out}/{split}", tmp_path)
            }
        )
    assert found[0].keys() == {json.dumps(row["messages"]) for row in rows}
    assert 0.7 < list(found[0].values()).count("train") / len(found[0]) < 0.9
    assert found[0].items() >= found[1].items()


def test_a_kept_field_may_be_called_text_and_is_still_there_after_an_append(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": [name, ""]}) + "\n")
    options: dict[str, Any] = {**QUIET, "text_key": None, "keep": ["text"]}
    convert_to_mds(tmp_path / "a.jsonl", tmp_path / "out", **options)
    convert_to_mds(tmp_path / "b.jsonl", tmp_path / "out", append=True, **options)
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["text"] for sample in samples] == [["a", ""], ["b", ""]]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "parquet as it is"])
def test_a_run_trains_on_converted_conversations_as_transformers_renders_them(
    tmp_path: Path, form: str
) -> None:
    messages, tokenizer = conversations(60), chat_tokenizer()
    source = tmp_path / f"a.{form.split(maxsplit=1)[0]}"
    rows = [{"messages": each, "source": "web"} for each in messages]
    if form == "jsonl":
        write_lines(source, rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), source)
    data = source
    if form != "parquet as it is":
        data = tmp_path / "out"
        convert_to_mds(source, data, **{**OPTIONS, "keep": ["messages", "source"]})
    options: dict[str, Any] = {"tokenizer": tokenizer, "eos": "auto", "chat": Chat()}
    options |= {"packing": "one_per_row", "seq_len": 400, "epochs": 1, "tail": "pad"}
    read = run_legs(ranks(str(data), **options), [Leg(batches=None)])
    found = {row.spans[0][2]: (list(row.input_ids), list(row.labels)) for row in read if row.spans}
    for sample, each in enumerate(messages):
        ids, labels = expected_document(tokenizer, each)
        assert (found[sample][0][: len(ids)], found[sample][1][: len(ids)]) == (ids, labels)
