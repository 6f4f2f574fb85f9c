"""A state's sources locate the data and the tokenizer, without secrets, also in older states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload.config.rows import RowsConfig
from cloudload.config.stream import Stream
from cloudload.errors import StreamChangedError
from cloudload.run.sources import describe_sources, read_sources


class Named:
    name_or_path = "org/model"


def config(*streams: Stream, **options: Any) -> RowsConfig:
    return RowsConfig(streams or (Stream("s3://bucket/a"),), 5, **options)


@pytest.mark.parametrize(
    ("tokenizer", "name"),
    [("gpt2", "gpt2"), (Path("/t"), "/t"), (Named(), "org/model"), (object(), None), (None, None)],
)
def test_the_tokenizer_is_its_name_or_path(tokenizer: Any, name: str | None) -> None:
    found = read_sources(describe_sources(config(), tokenizer))
    assert found.tokenizer == name
    assert found.tokenizer_name == (repr(name) if name else "a tokenizer without a name")


def test_streams_are_read_as_they_were_written() -> None:
    streams = (
        Stream("s3://b/x", split="train", proportion=2, name="x"),
        Stream("s3://b/y", proportion=1, bos=7),
    )
    found = read_sources(describe_sources(config(*streams, tokens_key="ids"), None))
    assert [(each.remote, each.split, each.proportion, each.bos) for each in found.streams] == [
        ("s3://b/x", "train", 2, "same"),
        ("s3://b/y", None, 1, 7),
    ]
    assert found.is_mixed
    assert (found.tokens_key, found.tokens_dtype) == ("ids", None)
    assert found.urls == "s3://b/x/train, s3://b/y"


def test_secrets_in_urls_are_not_saved() -> None:
    text = describe_sources(config(Stream("s3://key:secret@bucket/a")), None)
    assert "secret" not in text


@pytest.mark.parametrize(
    ("options", "stream", "is_automatic"),
    [
        ({}, {}, True),
        ({"eos": None}, {}, False),
        ({"bos": 1}, {}, False),
        ({}, {"bos": 1}, False),
        ({"bos": 1, "eos": 2}, {"bos": "auto", "eos": "auto"}, True),
    ],
)
def test_framing_is_automatic_if_it_is_for_every_stream(
    options: dict[str, Any], stream: dict[str, Any], is_automatic: bool
) -> None:
    text = describe_sources(config(Stream("s3://b/x", **stream), **options), "gpt2")
    assert read_sources(text).has_automatic_framing == is_automatic


def test_an_older_state_has_no_columns_of_token_ids() -> None:
    values = json.loads(describe_sources(config(), "gpt2"))
    del values["tokens_key"], values["tokens_dtype"]
    assert read_sources(json.dumps(values)).tokens_key is None


@pytest.mark.parametrize("text", ["", "7", "{}", "[" * 9_999, '{"streams": [{"x": 1}]}', "null"])
def test_damaged_sources_are_named(text: str) -> None:
    with pytest.raises(StreamChangedError, match=r"sources: .*The state is damaged"):
        read_sources(text)
