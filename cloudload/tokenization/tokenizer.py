"""Load tokenizers as plain data with a fingerprint, and encode documents.

    "gpt2"                                                        {"model": …}, no truncation
    "folder/" or "tokenizer.json"         ─► TokenizerSpec   json ┤
    PreTrainedTokenizerFast, Tokenizer                            frames (bos, eos) by stream

A document becomes `[bos] + ids of the text + [eos]`, where bos and eos are optional. The names of
special tokens, such as `<|endoftext|>`, are encoded as text inside a document.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cloudload.arrays import Frame, Ints, Tokens
from cloudload.config.choices import AUTO, HF
from cloudload.errors import TokenizerError
from cloudload.tokenization.encoders import HFEncoder, load_hf, open_encoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer


TokenName = str | int | None
"""A token, its ID, "auto", or None for no token."""

WITHOUT_TOKENIZER = "none"
"""The fingerprint if there is no tokenizer."""
_MOST_IDS = 1 << 31


@dataclass(frozen=True)
class TokenizerSpec:
    """A tokenizer and the bos and eos of each stream, as plain data for workers."""

    json: str
    """The text of the tokenizer.json, without truncation, padding and dropout. Empty if there is no
    tokenizer, because all data is pre-tokenized."""
    frames: tuple[Frame, ...]
    """The (bos, eos) IDs of each stream's documents; None for no token."""
    vocab_size: int
    """The largest ID, plus 1. Without a tokenizer, 2^31."""

    def __repr__(self) -> str:
        return (
            f"TokenizerSpec({self.fingerprint[:12]}, frames={self.frames}, "
            f"vocab_size={self.vocab_size})"
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tokenizer.json without its post-processor and decoder: 32 hex digits.

        Tokenizers with equal fingerprints give the same IDs. `frames` are not included. Without a
        tokenizer, it is `none`.
        """
        if not self.json:
            return WITHOUT_TOKENIZER
        # templates do not affect documents, and transformers 5 adds one that has no effect
        content = json.loads(self.json) | {"post_processor": None, "decoder": None}
        # `self.json` stays in ID order, because encoding with a sorted vocabulary is a fifth slower
        text = json.dumps(content, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def load_tokenizer(
    source: Any, frames: Sequence[tuple[TokenName, TokenName]] = ((AUTO, AUTO),)
) -> TokenizerSpec:
    """Load a tokenizer as plain data.

    `source` is a name on the Hugging Face Hub, a folder, a tokenizer.json, a
    `PreTrainedTokenizerFast`, or a `tokenizers.Tokenizer`. `frames` is a (bos, eos) pair for each
    stream: each is a token, its ID, None, or "auto". For bos, "auto" is the special token with
    which the tokenizer's template begins (None if there is none, or if the tokenizer names a
    different bos). For eos, it is the eos that the tokenizer names, or else the special token with
    which its template ends.

    Raises `TokenizerError` if `source` is not a tokenizer, cannot be loaded, or has no fast
    version, if "auto" finds no eos, or if a bos or eos is not one of its tokens.
    """
    backend, names = _find(source)
    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None  # with dropout, IDs would be random
    return TokenizerSpec(
        json=backend.to_str(),
        frames=tuple(
            (
                _bos_id(backend, bos, names.get("bos_token")),
                _eos_id(backend, eos, names.get("eos_token"), source),
            )
            for bos, eos in frames
        ),
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
    )


def frame_without_tokenizer(frames: Sequence[tuple[TokenName, TokenName]]) -> TokenizerSpec:
    """Describe pre-tokenized data without a tokenizer; `frames` are as for `load_tokenizer`.

    Raises `TokenizerError` unless each bos and eos is None or an ID below 2^31.
    """
    for token in itertools.chain.from_iterable(frames):
        if isinstance(token, str) or not 0 <= (token or 0) < _MOST_IDS:
            raise TokenizerError(
                f"bos or eos is {token!r}, and there is no tokenizer. Pass its ID, None, or "
                "the tokenizer"
            )
    ids = tuple((bos, eos) for bos, eos in frames)
    return TokenizerSpec(json="", frames=cast("tuple[Frame, ...]", ids), vocab_size=_MOST_IDS)


def _find(source: Any) -> tuple[Tokenizer, dict[str, str]]:
    """Load a `tokenizers.Tokenizer` that we may modify, and find its bos and eos tokens.

    The tokens are returned under `bos_token` and `eos_token`, if the source names them.
    """
    from tokenizers import Tokenizer

    if isinstance(source, Tokenizer):
        return Tokenizer.from_str(source.to_str()), {}
    if not isinstance(source, str | os.PathLike):
        return _from_transformers(source)
    path = Path(source).expanduser()
    file = path / "tokenizer.json" if path.is_dir() else path
    if path.is_dir() and not file.exists() and not (path / "tokenizer_config.json").exists():
        raise TokenizerError(
            f"no tokenizer.json in {path}. Pass the folder of a fast tokenizer, or its "
            "tokenizer.json"
        )
    if path.is_absolute() and not path.exists():
        raise TokenizerError(
            f"no tokenizer at {path}. Pass a name on the Hugging Face Hub, a folder, or a "
            "tokenizer.json"
        )
    names = _special_names(file.parent) if path.exists() else {}
    if file.is_file():
        try:
            return Tokenizer.from_file(str(file)), names
        except Exception as error:
            raise TokenizerError(
                f"{file} is not a tokenizer.json: {error}. Pass the tokenizer.json of a fast "
                "tokenizer"
            ) from error
    try:
        return _from_name(str(path if path.exists() else source))
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(". ")
        raise TokenizerError(
            f"cannot load the tokenizer {str(source)!r}: {reason}. Pass a name on the Hugging Face "
            "Hub, a folder, or a tokenizer.json"
        ) from error


def _from_name(name: str) -> tuple[Tokenizer, dict[str, str]]:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    backend, names = _from_transformers(
        AutoTokenizer.from_pretrained(name, use_fast=True, trust_remote_code=False)
    )
    with contextlib.suppress(OSError):  # not all tokenizers have the file
        # use the published file: transformers 5 converts some tokenizers, which changes their IDs
        backend = Tokenizer.from_file(cached_file(name, "tokenizer.json"))
    return backend, names


def _from_transformers(tokenizer: Any) -> tuple[Tokenizer, dict[str, str]]:
    from tokenizers import Tokenizer

    if not hasattr(tokenizer, "is_fast"):
        raise TokenizerError(
            f"{type(tokenizer).__name__} is not a tokenizer. Pass a name on the Hugging Face Hub, "
            "a folder, a tokenizer.json, a PreTrainedTokenizerFast, or a tokenizers.Tokenizer"
        )
    if not tokenizer.is_fast:
        raise TokenizerError(
            f"{type(tokenizer).__name__} is a slow tokenizer. Use its fast version if it has one "
            "(AutoTokenizer with use_fast=True), or convert it with "
            "transformers.convert_slow_tokenizer and pass the resulting tokenizers.Tokenizer"
        )
    names = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token")}
    return Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()), {
        k: str(v) for k, v in names.items() if v
    }


def _special_names(folder: Path) -> dict[str, str]:
    """The bos and eos tokens that a tokenizer's folder names, as `bos_token` and `eos_token`."""
    names: dict[str, str] = {}
    for file in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
        if file.is_file():
            try:
                names |= _read_names(file)
            except (OSError, ValueError, RecursionError) as error:
                raise TokenizerError(
                    f"{file} cannot be read: {error}. Repair it, or remove it and pass bos and eos"
                ) from error
    return names


def _read_names(file: Path) -> dict[str, str]:
    content = json.loads(file.read_text("utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"it is a JSON {type(content).__name__}, not an object")
    names: dict[str, str] = {}
    for name in ("bos_token", "eos_token"):
        token = content.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if token and not isinstance(token, str):
            raise ValueError(f"its {name} is {token!r:.100}, not a string")
        if token:
            names[name] = token
    return names


def _token_id(backend: Tokenizer, token: str | int, field: str) -> int:
    if isinstance(token, int):
        number = token if token < _MOST_IDS and backend.id_to_token(token) is not None else None
    else:
        number = backend.token_to_id(token)
    if number is None:
        raise TokenizerError(
            f"{field}={token!r} is not a token of this tokenizer. Set bos and eos to its tokens or "
            "to None"
        )
    return int(number)


def _encode_with_template(backend: Tokenizer) -> Any:
    try:
        return backend.encode("a", add_special_tokens=True)
    except Exception:  # a word-level vocabulary may have neither "a" nor an unknown token
        return backend.encode("", add_special_tokens=True)


def _bos_id(backend: Tokenizer, bos: TokenName, own: str | None) -> int | None:
    if bos != AUTO:
        return None if bos is None else _token_id(backend, bos, "bos")
    with_template = _encode_with_template(backend)
    leading = with_template.special_tokens_mask[:1] == [1]
    if not leading or (own is not None and with_template.tokens[0] != own):
        return None
    return int(with_template.ids[0])


def _eos_id(backend: Tokenizer, eos: TokenName, own: str | None, source: Any) -> int | None:
    if eos != AUTO:
        return None if eos is None else _token_id(backend, eos, "eos")
    if own is not None:
        return _token_id(backend, own, "eos_token")
    with_template = _encode_with_template(backend)
    if with_template.special_tokens_mask[-1:] == [1]:
        return int(with_template.ids[-1])
    where = f"{source}" if isinstance(source, str | os.PathLike) else "the tokenizer"
    raise TokenizerError(
        f"{where} does not define an eos token. Pass eos='<token>', eos=None to join documents "
        "without one, or a folder that has a tokenizer_config.json with an eos_token"
    )


class DocumentTokenizer:
    """Encodes and decodes documents. `backend` is `hf` or `fastokens`."""

    def __init__(self, spec: TokenizerSpec, backend: str = HF) -> None:
        self._json = spec.json
        self._encoder = open_encoder(spec.json, backend)
        self.frames = spec.frames
        """The (bos, eos) IDs of each stream's documents; None for no token."""

    def encode_flat(self, documents: Sequence[str]) -> tuple[Tokens, Ints]:
        """Encode documents to IDs, int32 [tokens], and offsets, int64 [documents + 1].

        Adds no bos or eos. The arrays may be read-only. Raises `TokenizerError` for a document that
        cannot be encoded, or if an earlier comparison of fastokens with hf found different IDs.
        """
        return self._encoder.encode(documents)

    def explain_failure(self, document: str) -> TokenizerError | None:
        """Encode one document with hf, and return the error that this raises, or None."""
        try:
            HFEncoder(self._json).encode([document])
        except TokenizerError as error:
            return error
        return None

    def decode(self, tokens: Tokens) -> str:
        """Decode IDs (int32 [tokens]) to text, including special tokens."""
        return decode_ids(self._json, tokens)


def decode_ids(text: str, tokens: Tokens) -> str:
    """Decode IDs (int32 [tokens]) with the tokenizer.json `text`, including special tokens.

    If `text` is empty, because there is no tokenizer, returns the IDs, separated by spaces.
    """
    if not text:
        return " ".join(map(str, tokens.tolist()))
    return str(load_hf(text).decode(tokens.tolist(), skip_special_tokens=False))
