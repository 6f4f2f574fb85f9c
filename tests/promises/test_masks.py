"""Tokens that are not trained have the label -100 in every run, and nothing else changes.

A token's letter decides whether it is trained, so a run with masks must have the rows of the plain
run, with the labels of these letters replaced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import Rows, Stream, Text, export_rows
from cloudload.errors import DatasetError
from cloudload.segments import IGNORED_LABEL
from cloudload.testing import Leg, Row, run_legs
from testkit.awkward import few_legs, without_end
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds
from testkit.counted import count
from testkit.examples import EXAMPLES, PACKINGS
from testkit.loaders import make_loader, ranks

HIDDEN = "abcdefgh 0123456789"
TOKENIZER = byte_tokenizer()
HIDDEN_IDS = frozenset(TOKENIZER.encode(HIDDEN).ids)
SPACES = re.compile(f"[^{HIDDEN}]+")


def hide(sample: dict[str, Any]) -> Text:
    """A transform that trains all letters except those in `HIDDEN`."""
    text = sample["text"]
    return Text(text, trained=[match.span() for match in SPACES.finditer(text)])


def keep(sample: dict[str, Any]) -> str:
    """A transform that trains everything."""
    return str(sample["text"])


def hidden(rows: Sequence[Row]) -> list[Row]:
    """The rows of a plain run, as a run with masks must have them."""
    return [
        Row(
            row.input_ids,
            tuple(IGNORED_LABEL if label in HIDDEN_IDS else label for label in row.labels),
            row.spans,
        )
        for row in rows
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same documents as text, and as token IDs with labels and with a mask."""
    root, documents = tmp_path_factory.mktemp("masks"), random_documents(1, 60)
    ids = [TOKENIZER.encode(text).ids for text in documents]
    labels = [[IGNORED_LABEL if each in HIDDEN_IDS else each for each in one] for one in ids]
    masks = [[int(each not in HIDDEN_IDS) for each in one] for one in ids]
    columns: dict[str, dict[str, tuple[str, list[Any]]]] = {
        "array": {
            "ids": ("ndarray:uint16", [np.array(one, np.uint16) for one in ids]),
            "labels": ("ndarray:int64", [np.array(one, np.int64) for one in labels]),
            "mask": ("ndarray:uint8", [np.array(one, np.uint8) for one in masks]),
        },
        "json": {
            "ids": ("json", ids),
            "labels": ("json", labels),
            "mask": ("json", [[bool(each) for each in one] for one in masks]),
        },
        "bytes": {
            "ids": ("bytes", [np.array(one, np.int32).tobytes() for one in ids]),
            "labels": ("bytes", [np.array(one, np.int32).tobytes() for one in labels]),
            "mask": ("bytes", [np.array(one, np.int32).tobytes() for one in masks]),
        },
    }
    return {
        name: write_mds(root / name, documents, shard_bytes=2_000, extra=extra)
        for name, extra in columns.items()
    }


@given(
    packing=st.sampled_from(PACKINGS),
    epochs=st.sampled_from([None, 1, 2]),
    legs=few_legs(),
    seq_len=st.sampled_from([1, 9, 33]),
    more=st.sampled_from([{}, {"row_bos": 7, "eos": None}, {"min_tokens": 20}]),
)
@settings(max_examples=EXAMPLES)
def test_a_run_with_masks_has_the_rows_of_the_plain_run_with_labels_hidden(
    folders: dict[str, str],
    *,
    packing: dict[str, Any],
    epochs: int | None,
    legs: list[Leg],
    seq_len: int,
    more: dict[str, Any],
) -> None:
    legs = legs if epochs else without_end(legs)
    options = {
        **packing,
        **more,
        "epochs": epochs,
        "seq_len": seq_len + len(more),
        "lengths": "off",
    }
    plain = run_legs(ranks(folders["json"], transform=keep, **options), legs)
    assert run_legs(ranks(folders["json"], transform=hide, **options), legs) == hidden(plain)


@pytest.mark.parametrize("labels_key", ["labels", "mask"])
@pytest.mark.parametrize("kind", ["array", "json", "bytes"])
def test_labels_and_masks_of_token_ids_hide_the_same_tokens(
    folders: dict[str, str], kind: str, labels_key: str
) -> None:
    options: dict[str, Any] = {"tokens_key": "ids", "epochs": 1}
    options["tokens_dtype"] = "int32" if kind == "bytes" else None
    legs = [Leg(2, batches=3), Leg(3, workers=1, batches=None)]
    plain = run_legs(ranks(folders[kind], **options), legs)
    masked = run_legs(ranks(folders[kind], labels_key=labels_key, **options), legs)
    assert masked == hidden(plain)


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_by_index_and_traces_have_masks_too(
    folders: dict[str, str], tmp_path: Path, packing: dict[str, Any]
) -> None:
    out = str(tmp_path / "lengths")
    count(folders["json"], transform=hide, out=out)
    options: dict[str, Any] = {**packing, "transform": hide, "epochs": 1, "lengths": out}
    of_loader = {"tokenizer": TOKENIZER, "eos": EOS, "seq_len": 16, "num_lanes": 12}
    with make_loader(folders["json"], **options, tail="pad") as loader:
        delivered = [
            (batch["input_ids"][index].tolist(), batch["labels"][index].tolist())
            for batch in loader
            for index in range(len(batch.rows))
        ]
    rows = Rows(folders["json"], **of_loader, **options)
    found = [(row["input_ids"].tolist(), row["labels"].tolist()) for row in rows]
    assert found == delivered[: len(found)]
    for index in (0, len(found) // 2):
        texts = "".join(span.text for span in rows.trace(index))
        ids = [each for each in found[index][0] if each]
        assert texts == TOKENIZER.decode(ids, skip_special_tokens=False)


def test_streams_with_their_own_transforms_mix_with_text_and_token_ids(
    folders: dict[str, str],
) -> None:
    data = [
        Stream(folders["array"], name="text", proportion=0.5),
        Stream(folders["json"], name="chat", proportion=0.3, transform=hide, eos=None),
        Stream(
            folders["bytes"], name="ids", proportion=0.2, tokens_key="ids", tokens_dtype="int32"
        ),
    ]
    plain_data = [data[0], Stream(**{**vars(data[1]), "transform": keep}), data[2]]
    legs = [Leg(2, batches=8), Leg(3, workers=2, batches=8), Leg(1, batch_size=5, batches=8)]
    plain = run_legs(ranks(plain_data), legs)
    of_stream = {row: {span[0] for span in row.spans} for row in plain}
    assert {0, 1, 2} <= set().union(*of_stream.values())
    expected = [hidden([row])[0] if of_stream[row] == {1} else row for row in plain]
    assert run_legs(ranks(data), legs) == expected


@pytest.mark.parametrize("row_bos", [None, 7])
def test_statistics_count_the_trained_tokens_of_each_stream(
    folders: dict[str, str], row_bos: int | None
) -> None:
    data = [
        Stream(folders["json"], name="chat", transform=hide),
        Stream(folders["bytes"], name="text"),
    ]
    options: dict[str, Any] = {"row_bos": row_bos, "packing": "best_fit", "epochs": 1}
    trained = [0, 0]
    with make_loader(data, **options, tail="pad") as loader:
        assert loader.stats().streams["chat"].trained is None
        for batch in loader:
            position = dict.fromkeys(range(len(batch.rows)), batch.num_lead)
            for row, stream, _, _, start, stop in batch.spans.tolist():
                labels = batch["labels"][row, position[row] : position[row] + stop - start]
                trained[stream] += int((labels != IGNORED_LABEL).sum())
                position[row] += stop - start
        stats = loader.stats()
        assert [each.trained for each in stats.streams.values()] == trained
        assert trained[1] == stats.streams["text"].tokens
        assert 0 < trained[0] < stats.streams["chat"].tokens
        assert stats.as_dict()["streams/chat/trained"] == trained[0]
        assert "trained" in str(stats)
    with make_loader(data[1:], **options) as loader:
        next(iter(loader))
        assert "streams/text/trained" not in loader.stats().as_dict()


def test_a_document_without_trained_tokens_is_filtered_out(tmp_path: Path) -> None:
    documents = ["XYZ", "abc", "XYZ", "abc"]
    ids = [TOKENIZER.encode(text).ids for text in documents]
    labels = [
        one if text == "XYZ" else [-100] * 3 for text, one in zip(documents, ids, strict=True)
    ]
    folder = write_mds(
        tmp_path / "d", documents, extra={"ids": ("json", ids), "labels": ("json", labels)}
    )
    for options in ({"transform": hide}, {"tokens_key": "ids", "labels_key": "labels"}):
        report = count(folder, **options, out=str(tmp_path / "lengths"), tokenizer=TOKENIZER)
        assert (report.documents, report.filtered) == (2, 2)
        with make_loader(folder, epochs=1, num_lanes=1, tail="pad", **options) as loader:
            assert sum(batch.num_tokens for batch in loader) == 2 * 4
            assert (loader.stats().documents, loader.stats().filtered) == (2, 2)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2], "has 2 labels, but 3 token IDs"),
        ([5, -100, 5], r"has the label 5 at token 0, whose ID is \d+"),
        ([-1, 0, 1], r"has the label -1 at token 0"),
    ],
)
def test_labels_that_do_not_match_the_ids_are_an_error(
    tmp_path: Path, labels: list[int], message: str
) -> None:
    ids = TOKENIZER.encode("XYZ").ids
    extra = {"ids": ("json", [ids]), "labels": ("json", [labels])}
    folder = write_mds(tmp_path / "d", ["XYZ"], extra=extra)
    options = {"tokens_key": "ids", "labels_key": "labels", "num_lanes": 1}
    with (
        make_loader(folder, **options) as loader,
        pytest.raises(DatasetError, match=f"sample 0 of .*{message}"),
    ):
        next(iter(loader))


def test_labels_in_a_column_of_bytes_need_a_dtype_also_if_the_ids_do_not(tmp_path: Path) -> None:
    documents = random_documents(3, 20)
    ids = [TOKENIZER.encode(text).ids for text in documents]
    labels = [[IGNORED_LABEL if each in HIDDEN_IDS else each for each in one] for one in ids]
    extra: dict[str, tuple[str, list[Any]]] = {
        "ids": ("ndarray:uint16", [np.array(one, np.uint16) for one in ids]),
        "labels": ("bytes", [np.array(one, np.int64).tobytes() for one in labels]),
    }
    folder = write_mds(tmp_path / "d", documents, extra=extra)
    options: dict[str, Any] = {"tokens_key": "ids", "labels_key": "labels", "epochs": 1}
    with pytest.raises(DatasetError, match=r"column 'labels' of .* bytes, .*Set tokens_dtype to"):
        make_loader(folder, **options)
    with pytest.raises(DatasetError, match=r"no column 'y'. Set labels_key to .*: ids, labels"):
        make_loader(folder, **{**options, "labels_key": "y"})
    with pytest.raises(DatasetError, match=r"encoding str, .* Set labels_key to a column of bytes"):
        make_loader(folder, **{**options, "labels_key": "text"})
    legs = [Leg(batches=None)]
    plain = run_legs(ranks(folder, tokens_key="ids", epochs=1), legs)
    assert run_legs(ranks(folder, tokens_dtype="int64", **options), legs) == hidden(plain)


@pytest.mark.parametrize("encoding", ["ndarray", "bytes"])
def test_exported_rows_keep_their_masks(
    folders: dict[str, str], tmp_path: Path, encoding: str
) -> None:
    options: dict[str, Any] = {"transform": hide, "epochs": 1, "batch_size": 1, "tail": "pad"}
    out = str(tmp_path / "out")
    with make_loader(folders["json"], **options) as loader:
        report = export_rows(loader, out, encoding=encoding)
    assert report.columns == ("tokens", "trained")
    with make_loader(folders["json"], **options) as loader:
        before = [(batch["input_ids"].tolist(), batch["labels"].tolist()) for batch in loader]
    options = {"tokens_key": "tokens", "labels_key": "trained", "shuffle": False, "eos": None}
    options["tokens_dtype"] = report.dtype if encoding == "bytes" else None
    with make_loader(out, epochs=1, batch_size=1, num_lanes=1, **options) as loader:
        after = [(batch["input_ids"].tolist(), batch["labels"].tolist()) for batch in loader]
    # the last row, which has padding, is not full without it
    assert after[: len(before) - 1] == before[: len(before) - 1]
