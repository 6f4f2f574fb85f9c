"""The locations of a run's data and tokenizer, which a state records as JSON without secrets.

`cloudload.provenance` uses these locations to reopen a run. If a state is refused on load, the
error names them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cloudload.config import Chat, Fim, RowsConfig, Stream, choices
from cloudload.data import redact
from cloudload.rows import TokenName
from cloudload.run.state_fields import damaged

_OPTIONS = ("bos", "eos", "tokens_key", "tokens_dtype", "labels_key", "text_key")
_KINDS: Mapping[str, type[Any]] = {"chat": Chat, "fim": Fim}
"""The options whose values are configs."""


@dataclass(frozen=True)
class Sources:
    """The locations of a run's data and tokenizer, and the options for reading them."""

    streams: list[Stream]
    tokenizer: str | None
    """The tokenizer's name or path; None if it was passed as an object without a name."""
    bos: TokenName
    eos: TokenName
    is_mixed: bool
    tokens_key: str | None
    tokens_dtype: str | None
    labels_key: str | None
    text_key: str | None
    """None in older states, which have it only as a field."""
    chat: Chat | None
    fim: Fim | None
    own_transforms: list[str]
    """The names of the streams that have a function of their own, which a state cannot store."""

    @property
    def urls(self) -> str:
        """The URLs of the streams for messages: redacted, and separated by commas."""
        return ", ".join(redact(stream.url) for stream in self.streams)

    @property
    def tokenizer_name(self) -> str:
        """The location of the tokenizer, for a message."""
        return redact(repr(self.tokenizer)) if self.tokenizer else "a tokenizer without a name"

    @property
    def has_automatic_framing(self) -> bool:
        """Whether the bos and the eos of every stream were "auto"."""
        asked = {self.bos if each.bos == choices.SAME else each.bos for each in self.streams}
        asked |= {self.eos if each.eos == choices.SAME else each.eos for each in self.streams}
        return asked == {choices.AUTO}


def describe_sources(config: RowsConfig, tokenizer: Any) -> str:
    """Encode the locations of the data and the tokenizer as JSON, for a state."""
    name = (
        os.fspath(tokenizer)
        if isinstance(tokenizer, str | os.PathLike)
        else getattr(tokenizer, "name_or_path", None)
    )
    return json.dumps(
        {
            "streams": list(map(_describe_stream, config.streams)),
            "own_transforms": [
                stream.label
                for stream in config.streams
                if callable(stream.transform) or callable(stream.encode)
            ],
            "is_mixed": config.is_mixed,
            "tokenizer": name or None,
            **{name: getattr(config, name) for name in _OPTIONS},
            **{name: asdict(value) for name in _KINDS if (value := getattr(config, name))},
        }
    )


def weigh_sources(text: str, shares: Mapping[int, float]) -> str:
    """Return `sources` in which some streams, given by index, have other proportions."""
    sources = json.loads(text)
    for index, share in shares.items():
        sources["streams"][index]["proportion"] = share
    return json.dumps(sources)


def _describe_stream(stream: Stream) -> dict[str, Any]:
    """The options of a stream that differ from their defaults, without secrets."""
    given = {each.name: (getattr(stream, each.name), each.default) for each in fields(stream)}
    shown = {name: value for name, (value, default) in given.items() if value != default}
    functions = [name for name in ("transform", "encode") if callable(getattr(stream, name))]
    left_out = {*functions, *(f"{name}_id" for name in functions)}
    kept = {name: value for name, value in shown.items() if name not in left_out}
    own = {
        name: asdict(value)
        for name, kind in _KINDS.items()
        if isinstance(value := getattr(stream, name), kind)
    }
    return {**kept, **own, **stream.shown_urls}


def _read_stream(saved: Mapping[str, Any]) -> Stream:
    return Stream(**{**saved, **_read_kinds(saved)})


def _read_kinds(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The options among saved ones whose values are configs, such as `Chat`."""
    found = {name: saved[name] for name in _KINDS if saved.get(name)}
    return {
        name: _KINDS[name](**value) if isinstance(value, dict) else value
        for name, value in found.items()
    }


def read_sources(text: str) -> Sources:
    """Parse the `sources` of a state. Raises `StreamChangedError` if they are damaged."""
    try:
        saved = json.loads(text)
        streams = list(map(_read_stream, saved["streams"]))
        others = {name: saved[name] for name in ("tokenizer", "bos", "eos", "is_mixed")}
        # older states lack these options
        others |= {name: saved.get(name) for name in _OPTIONS[2:]}
        others |= dict.fromkeys(_KINDS) | _read_kinds(saved)
        others["own_transforms"] = list(saved.get("own_transforms", ()))
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError) as error:
        raise damaged("sources", f"{error!r:.200}") from error
    return Sources(streams, **others)
