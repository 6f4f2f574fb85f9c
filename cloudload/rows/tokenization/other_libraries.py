"""Tokenizers of tiktoken and SentencePiece, with the interface of those of `tokenizers`.

    "tiktoken:o200k_base", "o200k_base.tiktoken", tiktoken.Encoding ─┐
    "tokenizer.model", SentencePieceProcessor ───────────────────────┴─► text ─► `parse_other`

The text is JSON with the vocabulary, and with the fields of a tokenizer.json that say how to show
tokens and which are special. So everything except encoding reads it as a tokenizer.json.
"""

from __future__ import annotations

import base64
import binascii
import functools
import importlib
import json
import os
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudload.data import urls
from cloudload.errors import TokenizerError

TIKTOKEN, SENTENCEPIECE = "tiktoken", "sentencepiece"
_PREFIX = f"{TIKTOKEN}:"
_START = '{"library":"'
_PUBLIC = ("r50k_base", "p50k_base", "cl100k_base", "o200k_base")
"""The encodings of tiktoken whose files are named after them."""


@dataclass(frozen=True)
class OtherEncoded:
    """The IDs of a text. Other libraries neither say which characters a token has, nor have
    templates that add special tokens."""

    ids: list[int]
    offsets: tuple[tuple[int, int], ...] = ()
    tokens: tuple[str, ...] = ()
    special_tokens_mask: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


def library_of(text: str) -> str | None:
    """The library that encodes with the tokenizer `text`; None for a tokenizer.json."""
    return text[len(_START) :].partition('"')[0] if text.startswith(_START) else None


def find_other(source: Any) -> tuple[str, Path | None] | None:
    """Return the text and the file of a tokenizer of another library; None if it is of none.

    Raises `TokenizerError` if the library is not installed, or cannot load the tokenizer.
    """
    module = type(source).__module__.partition(".")[0]
    if module == TIKTOKEN:
        return _describe_encoding(source), None
    if module == SENTENCEPIECE:
        return _describe_model(source), None
    if not isinstance(source, str | os.PathLike):
        return None
    if str(source).startswith(_PREFIX):
        return _describe_encoding(_load_encoding(str(source).removeprefix(_PREFIX))), None
    path = urls.expand_home(source)
    if path.suffix not in (".tiktoken", ".model") or not path.is_file():
        return None
    data = path.read_bytes()
    ranks = _read_ranks(data)
    if path.suffix == ".model" and ranks is None:
        processor = _require(SENTENCEPIECE).SentencePieceProcessor
        try:
            return _describe_model(processor(model_proto=data)), path
        except RuntimeError as error:
            raise TokenizerError(f"{path} is not a SentencePiece model: {error}") from error
    if ranks is None:
        raise TokenizerError(
            f"{path} is not a file of tiktoken, whose lines are tokens in base64 and their ranks"
        )
    return _describe_encoding(_build_encoding(path, ranks)), path


def parse_other(text: str) -> TiktokenTokenizer | SentencePieceTokenizer:
    """Create the tokenizer for a text of `find_other`."""
    kind = TiktokenTokenizer if library_of(text) == TIKTOKEN else SentencePieceTokenizer
    return kind(json.loads(text))


def _require(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise TokenizerError(
            f"the tokenizer needs {library}, which is not installed. Run: pip install "
            f"'cloudload[{library}]'"
        ) from error


def _dump(
    library: str, vocabulary: Mapping[str, Any], added: Iterable[tuple[int, str, bool]]
) -> str:
    tokens = [{"id": id, "content": name, "special": special} for id, name, special in added]
    content = {"library": library, **vocabulary, "added_tokens": tokens}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


# ---------------------------------------------------------------- tiktoken


def _load_encoding(name: str) -> Any:
    try:
        return _require(TIKTOKEN).get_encoding(name)
    except (ValueError, OSError) as error:
        raise TokenizerError(
            f"tiktoken cannot load the encoding {name!r}: {error}. Use one of its names. To "
            "load it without the network, set TIKTOKEN_CACHE_DIR, or pass the path of its "
            ".tiktoken file"
        ) from error


def _read_ranks(data: bytes) -> dict[bytes, int] | None:
    """Read the lines of a file of tiktoken. None if it is none."""
    try:
        pairs = [line.split() for line in data.splitlines() if line]
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs} or None
    except (ValueError, binascii.Error):
        return None


def _build_encoding(path: Path, ranks: dict[bytes, int]) -> Any:
    """Build a public encoding of tiktoken from the ranks in its file."""
    library = _require(TIKTOKEN)
    if path.stem not in _PUBLIC:
        raise TokenizerError(
            f"{path} has ranks, but neither the pattern nor the special tokens of the encoding. "
            "Pass tiktoken.Encoding(name, pat_str=..., mergeable_ranks=..., special_tokens=...). "
            f"Only files named after one of {', '.join(_PUBLIC)} need neither"
        )
    build = getattr(importlib.import_module("tiktoken_ext.openai_public"), path.stem)
    # the same function, with a loader that returns the ranks of the file
    known = {**build.__globals__, "load_tiktoken_bpe": lambda *_, **__: ranks}
    try:
        return library.Encoding(**types.FunctionType(build.__code__, known)())
    except (AssertionError, ValueError) as error:
        raise TokenizerError(f"{path} is not the file of {path.stem}: {error}") from error


def _describe_encoding(encoding: Any) -> str:
    letters = {byte: letter for letter, byte in list_byte_letters().items()}
    ranks = sorted(encoding._mergeable_ranks.items(), key=lambda pair: pair[1])
    names = {"".join(map(letters.__getitem__, token)): rank for token, rank in ranks}
    vocabulary = {
        "pattern": encoding._pat_str,
        "model": {"type": TIKTOKEN, "vocab": names},
        "pre_tokenizer": {"type": "ByteLevel"},
        "decoder": {"type": "ByteLevel"},
    }
    special = sorted((id, name, True) for name, id in encoding._special_tokens.items())
    return _dump(TIKTOKEN, vocabulary, special)


class TiktokenTokenizer:
    """A `tiktoken.Encoding` with the methods of a `tokenizers.Tokenizer` that the package uses."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.encode_special_tokens = True
        self._ids: dict[str, int] = content["model"]["vocab"]
        self._special = {each["content"]: each["id"] for each in content["added_tokens"]}
        self._names = {id: name for name, id in {**self._ids, **self._special}.items()}
        bytes_of = list_byte_letters()
        self._encoding = _require(TIKTOKEN).Encoding(
            "cloudload",
            pat_str=content["pattern"],
            mergeable_ranks={
                bytes(map(bytes_of.__getitem__, name)): rank for name, rank in self._ids.items()
            },
            special_tokens=self._special,
        )

    @property
    def eos_token(self) -> str | None:
        """The special token that ends documents in the public encodings, if there is one."""
        return "<|endoftext|>" if "<|endoftext|>" in self._special else None

    bos_token = None

    @property
    def vocab_size(self) -> int:
        """The largest token ID plus 1."""
        return max(self._names, default=-1) + 1

    def encode(self, text: str, add_special_tokens: bool = False) -> OtherEncoded:
        text.encode()  # tiktoken would replace lone surrogates
        if self.encode_special_tokens:
            ids = self._encoding.encode_ordinary(text)
        else:
            ids = self._encoding.encode(text, allowed_special="all")
        return OtherEncoded(ids)

    def encode_batch_fast(
        self, texts: Sequence[str], add_special_tokens: bool = False
    ) -> list[OtherEncoded]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return str(self._encoding.decode([id for id in ids if id in self._names]))

    def token_to_id(self, token: str) -> int | None:
        return self._special.get(token, self._ids.get(token))

    def id_to_token(self, id: int) -> str | None:
        return self._names.get(id)


@functools.cache
def list_byte_letters() -> dict[str, int]:
    """Map each letter of GPT-2's byte-level alphabet to its byte.

    Printable Latin-1 letters stand for their own byte. Letters from U+0100 stand for the other
    bytes, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


# ---------------------------------------------------------------- SentencePiece


def _describe_model(processor: Any) -> str:
    vocabulary = {
        "model": {
            "type": SENTENCEPIECE,
            "proto": base64.b64encode(processor.serialized_model_proto()).decode(),
        },
        "decoder": {"type": "ByteFallback"},
    }
    size = processor.vocab_size()
    control = [id for id in range(size) if processor.is_control(id)]
    return _dump(
        SENTENCEPIECE, vocabulary, [(id, processor.id_to_piece(id), True) for id in control]
    )


class SentencePieceTokenizer:
    """A SentencePiece model with the methods of a `tokenizers.Tokenizer` that the package uses."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.encode_special_tokens = True
        proto = base64.b64decode(content["model"]["proto"])
        self._model = _require(SENTENCEPIECE).SentencePieceProcessor(model_proto=proto)
        self._special = {each["id"]: each["content"] for each in content["added_tokens"]}

    @property
    def bos_token(self) -> str | None:
        """The bos of the model, if it has one."""
        return self._special.get(self._model.bos_id())

    @property
    def eos_token(self) -> str | None:
        """The eos of the model, if it has one."""
        return self._special.get(self._model.eos_id())

    @property
    def vocab_size(self) -> int:
        """The largest token ID plus 1."""
        return int(self._model.vocab_size())

    def encode(self, text: str, add_special_tokens: bool = False) -> OtherEncoded:
        return self.encode_batch_fast([text])[0]

    def encode_batch_fast(
        self, texts: Sequence[str], add_special_tokens: bool = False
    ) -> list[OtherEncoded]:
        if not self.encode_special_tokens:
            raise TokenizerError(
                "SentencePiece encodes the names of special tokens only as text. Convert the model "
                "to a tokenizer.json, or pass encode, a function that makes the tokens"
            )
        for text in texts:
            text.encode()
        found = self._model.encode(list(texts), out_type=int, num_threads=1)
        return list(map(OtherEncoded, found))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        parts, run = list[str](), list[int]()
        for id in [*ids, None]:
            if id is not None and id not in self._special and id < self.vocab_size:
                run.append(id)
                continue
            parts.append(self._model.decode(run) if run else "")
            parts.append("" if id is None else self._special.get(id, ""))
            run = []
        return "".join(parts)

    def token_to_id(self, token: str) -> int | None:
        id = int(self._model.piece_to_id(token))
        return id if self._model.id_to_piece(id) == token else None

    def id_to_token(self, id: int) -> str | None:
        return str(self._model.id_to_piece(id)) if 0 <= id < self.vocab_size else None
