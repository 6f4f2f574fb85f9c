"""Load a tokenizer, by name or from files, and turn it into plain data that workers can load.

    "gpt2"                                                        {"model": …}, no truncation
    "folder/" or "tokenizer.json"         ─► TokenizerSpec   json ┤
    PreTrainedTokenizerFast, Tokenizer                            frames (bos, eos) by stream
    of tiktoken or SentencePiece                                  json: see `other_libraries`

A document becomes `[bos] + ids of the text + [eos]`, where bos and eos are optional. The names of
special tokens, such as `<|endoftext|>`, are encoded as text inside a document, unless the document
is a `Text` with `special_tokens=True`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cloudload.config import choices
from cloudload.data import hub, kept_tokenizers, redact, urls
from cloudload.errors import TokenizerError
from cloudload.rows.tokenization.framing import (
    CONFIG_NAME,
    NamedTokens,
    TokenName,
    choose_bos,
    choose_eos,
    list_named_tokens,
    read_named_tokens,
)
from cloudload.rows.tokenization.loading import keep_hf, load_hf, parse_hf, shorten_merges
from cloudload.rows.tokenization.other_libraries import find_other, library_of
from cloudload.rows.tokenization.probes import FIXED_TEXTS
from cloudload.system import Frame

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger("cloudload.tokenizer")

# cache-key version: increment it when `TokenizerSpec`, or how its values are computed, changes
_SPECS = 2

WITHOUT_TOKENIZER = "none"
"""The fingerprint of a `TokenizerSpec` that has no tokenizer."""

_MOST_REASON = 200
_CACHES_OF_TRANSFORMERS = (
    "TRANSFORMERS_CACHE",
    "PYTORCH_TRANSFORMERS_CACHE",
    "PYTORCH_PRETRAINED_BERT_CACHE",
)


@dataclass(frozen=True)
class TokenizerSpec:
    """A tokenizer and each stream's bos and eos, as plain data that is sent to workers."""

    json: str
    """The text of the tokenizer.json, with truncation, padding and dropout turned off. Empty if all
    data is pre-tokenized and there is no tokenizer."""
    frames: tuple[Frame, ...]
    """The (bos, eos) IDs of each stream's documents; None for no token."""
    vocab_size: int
    """The largest token ID plus 1, or 2^31 - 1 if there is no tokenizer."""
    token_ids: str
    """A hash, in 16 hex digits, of the IDs of `probes.FIXED_TEXTS`. It detects a version of
    `tokenizers` that produces different IDs. Empty if there is no tokenizer."""
    fingerprint: str
    """A hash, in 32 hex digits, of the tokenizer.json without its post-processor and decoder.

    Tokenizers with equal fingerprints produce the same IDs. The hash does not cover `frames`. It is
    "none" if there is no tokenizer."""
    row_bos: int | None = None
    """The ID at the start of each row; None for no token."""
    framing: str = field(default="", compare=False)
    """For the log: the bos and eos tokens, and the setting or file that each one comes from."""
    framing_warning: str | None = field(default=None, compare=False)
    """A warning if an eos looks like the end of a chat turn, else None."""

    def check_id(self, name: str, token_id: int) -> None:
        """Raise `ValueError` if an ID, which the error calls `name`, is not in the vocabulary."""
        if token_id >= self.vocab_size:
            raise ValueError(
                f"{name} is {token_id:,}, but token IDs are from 0 to {self.vocab_size - 1:,}. "
                "Use one of these"
            )

    def __repr__(self) -> str:
        return (
            f"TokenizerSpec({self.fingerprint[:12]}, frames={self.frames}, "
            f"vocab_size={self.vocab_size})"
        )


def load_tokenizer(
    source: Any,
    frames: Sequence[tuple[TokenName, TokenName]] = ((choices.AUTO, choices.AUTO),),
    cache_root: Path | None = None,
) -> TokenizerSpec:
    """Load a tokenizer as plain data.

    `source` is a name on the Hugging Face Hub, a folder, a tokenizer.json, a
    `PreTrainedTokenizerFast`, a `tokenizers.Tokenizer`, or one of another library, as for
    `other_libraries.find_other`, or the result of `find_tokenizer`. `frames` has a (bos, eos) pair
    for each stream. The bos and the eos are each a token, its ID, None, or "auto".

    If `add_bos_token` is true, a bos of "auto" means the bos that the tokenizer names. If it is
    false, "auto" means None. If it is not set, "auto" means the special token with which the
    tokenizer's template begins, or None if the template begins with none or if the tokenizer names
    a different bos. An eos of "auto" means the eos that the tokenizer names, or else the special
    token with which its template ends.

    The result is saved in the folder `cache_root`, if there is one, because a large tokenizer takes
    seconds to load. Raises `TokenizerError` if `source` is not a tokenizer, cannot be loaded, or
    has no fast version, if "auto" finds no eos, or if the tokenizer lacks a given bos or eos.
    """
    found = find_tokenizer(source)
    text, named, file = found.text, found.named, found.file
    is_path = isinstance(found.source, str | os.PathLike)
    where = f"{found.source}" if is_path else "the tokenizer"
    describe = functools.partial(_describe, text, named, frames, file, where)
    if cache_root is None:
        return describe()
    library = library_of(text) or "tokenizers"
    names = [f"spec-{_SPECS}", kept_tokenizers.with_version(library)]
    path = kept_tokenizers.kept_path(
        cache_root, [text, repr(named), repr(list(frames)), where], names
    )
    return _decode(kept_tokenizers.learn_once(path, lambda: _encode(describe())))


def _describe(
    text: str,
    named: NamedTokens,
    frames: Sequence[tuple[TokenName, TokenName]],
    file: Path | None,
    where: str,
) -> TokenizerSpec:
    """Parse the tokenizer.json `text`, and choose the tokens that frame documents.

    `file` is the path of the tokenizer.json, if known. `where` names the tokenizer in errors.
    """
    if library_of(text):
        backend: Any = load_hf(text)
        vocab_size, fingerprint = backend.vocab_size, kept_tokenizers.digest_of([text])
    else:
        backend = _parse(text, file)
        backend.no_truncation()
        backend.no_padding()
        if getattr(backend.model, "dropout", None):
            backend.model.dropout = None  # with dropout, IDs would be random
        vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        content = json.loads(plain := backend.to_str())
        text, fingerprint = shorten_merges(plain, content), _fingerprint(content)
    tokens = [
        (choose_bos(backend, bos, named), choose_eos(backend, eos, named, where))
        for bos, eos in frames
    ]
    warnings = [eos.warning for _, eos in tokens if eos.warning]
    keep_hf(text, backend)  # forked workers may need it, and parsing a large one takes a second
    return TokenizerSpec(
        json=text,
        frames=tuple((bos.id, eos.id) for bos, eos in tokens),
        vocab_size=vocab_size,
        token_ids=_hash_ids(backend),
        fingerprint=fingerprint,
        framing=" · ".join(dict.fromkeys(f"{bos.text}, {eos.text}" for bos, eos in tokens)),
        framing_warning=warnings[0] if warnings else None,
    )


def _fingerprint(content: dict[str, Any]) -> str:
    # drop templates: they do not affect documents, and transformers 5 adds one without effect
    content = content | {"post_processor": None, "decoder": None}
    # sort only for the hash, because encoding with a sorted vocabulary is 20% slower
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def _encode(spec: TokenizerSpec) -> str:
    """Encode a spec as a line of JSON, followed by its tokenizer.json."""
    return f"{json.dumps(asdict(spec) | {'json': ''})}\n{spec.json}"


def _decode(kept: str) -> TokenizerSpec:
    """Decode a spec that `_encode` encoded."""
    line, _, text = kept.partition("\n")
    fields = json.loads(line)
    frames = tuple((bos, eos) for bos, eos in fields["frames"])
    return TokenizerSpec(**fields | {"json": text, "frames": frames})


def _hash_ids(backend: Tokenizer) -> str:
    backend.encode_special_tokens = True
    digest = hashlib.sha256()
    for text in FIXED_TEXTS:
        try:
            ids = backend.encode(text, add_special_tokens=False).ids
        except Exception:  # a word-level tokenizer without an unknown token cannot encode all texts
            ids = [-1]
        digest.update(np.array([len(ids), *ids], "<i8").tobytes())
    return digest.hexdigest()[:16]


def frame_without_tokenizer(frames: Sequence[tuple[TokenName, TokenName]]) -> TokenizerSpec:
    """Create the `TokenizerSpec` of a run that has only pre-tokenized data and no tokenizer.

    `frames` are as for `load_tokenizer`. Raises `TokenizerError` unless each bos and eos is None or
    an ID below 2^31 - 1.
    """
    for token in itertools.chain.from_iterable(frames):
        if isinstance(token, str) or not 0 <= (token or 0) < choices.MOST_IDS:
            raise TokenizerError(
                f"bos or eos is {token!r}, but without a tokenizer it must be None or a token "
                f"ID from 0 to {choices.MOST_IDS - 1:,}. Pass None or the token's ID, or pass the "
                "tokenizer"
            )
    ids = tuple((bos, eos) for bos, eos in frames)
    texts = [f"{_describe_id(bos, 'bos')}, {_describe_id(eos, 'eos')}" for bos, eos in frames]
    return TokenizerSpec(
        json="",
        frames=cast("tuple[Frame, ...]", ids),
        vocab_size=choices.MOST_IDS,
        token_ids="",
        fingerprint=WITHOUT_TOKENIZER,
        framing=" · ".join(dict.fromkeys(texts)),
    )


def _describe_id(token: TokenName, kind: str) -> str:
    return f"no {kind}" if token is None else f"{kind} {token}"


@dataclass(frozen=True)
class FoundTokenizer:
    """A tokenizer before it is parsed, and where it was found."""

    text: str
    """The text of its tokenizer.json."""
    named: NamedTokens
    file: Path | None
    """The path of its tokenizer.json, or None if the text does not come from a file."""
    loaded: Any = None
    """The transformers tokenizer, if the text comes from one."""
    source: Any = None
    """The tokenizer as the user passed it."""


def find_tokenizer(source: Any) -> FoundTokenizer:
    """Find a tokenizer, unless `source` is already the result.

    Otherwise, `source` and errors are as for `load_tokenizer`.
    """
    if isinstance(source, FoundTokenizer):
        return source
    return replace(_find(source), source=source)


def _find(source: Any) -> FoundTokenizer:
    from tokenizers import Tokenizer

    if isinstance(source, Tokenizer):
        return FoundTokenizer(source.to_str(), NamedTokens(), None)
    if (other := find_other(source)) is not None:
        text, other_file = other
        return FoundTokenizer(text, _name_tokens(text, other_file), other_file)
    if not isinstance(source, str | os.PathLike):
        return _from_transformers(source)
    path = urls.expand_home(source)
    file = path / "tokenizer.json" if path.is_dir() else path
    if path.is_dir() and not file.exists() and not (path / CONFIG_NAME).exists():
        raise TokenizerError(
            f"{path} has no tokenizer.json. Pass the folder of a fast tokenizer, or its "
            "tokenizer.json"
        )
    if path.is_absolute() and not path.exists():
        raise TokenizerError(
            f"the tokenizer {path} does not exist. Pass a name on the Hugging Face Hub, a folder, "
            "or a tokenizer.json"
        )
    named = read_named_tokens(file.parent) if path.exists() else NamedTokens()
    if file.is_file():
        return FoundTokenizer(_read(file), named, file)
    tokenizer, folder = load_by_name(str(path if path.exists() else source))
    if folder is None:
        return _from_transformers(tokenizer)
    # use the published file: transformers 5 converts some tokenizers, which changes their IDs
    file = folder / "tokenizer.json"
    return FoundTokenizer(_read(file), read_named_tokens(folder), file)


def _name_tokens(text: str, file: Path | None) -> NamedTokens:
    """The bos and eos of a tokenizer of another library, which files beside it may also name."""
    found, library = load_hf(text), library_of(text)
    named = read_named_tokens(file.parent) if file else NamedTokens()
    changes: dict[str, Any] = {}
    for name, token in (("bos", found.bos_token), ("eos", found.eos_token)):
        if getattr(named, name) is None and token is not None:
            changes |= {name: token, f"{name}_source": f"{name} of {library}"}
    return replace(named, **changes)


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except OSError as error:
        raise TokenizerError(
            f"{file} cannot be read: {error}. Check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise _explain_file(file, error) from error


def _parse(text: str, file: Path | None) -> Tokenizer:
    try:
        return parse_hf(text)
    except Exception as error:
        if file is None:
            raise
        raise _explain_file(file, error) from error


def _explain_file(file: Path, error: Exception) -> TokenizerError:
    return TokenizerError(
        f"{file} is not a valid tokenizer.json: {error}. Pass the tokenizer.json of a fast "
        "tokenizer"
    )


def _from_transformers(tokenizer: Any) -> FoundTokenizer:
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
    text = tokenizer.backend_tokenizer.to_str()
    return FoundTokenizer(text, list_named_tokens(tokenizer), None, tokenizer)


def load_by_name(name: str) -> tuple[Any, Path | None]:
    """Load a tokenizer with transformers.

    `name` is a name on the Hub, or a folder without a tokenizer.json. Returns the transformers
    tokenizer, and the folder of its tokenizer.json, or None if it has none. Raises `TokenizerError`
    if the tokenizer cannot be loaded.
    """
    obstacle = None if Path(name).exists() else hub.find_obstacle()
    if obstacle and _is_absent_from_cache(name):
        raise TokenizerError(_explain_offline(redact(name), obstacle))
    from transformers import AutoTokenizer  # this import takes seconds
    from transformers.utils import cached_file

    options = {"local_files_only": True} if obstacle else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, use_fast=True, trust_remote_code=False, **options
        )
    except (OSError, ValueError, KeyError) as error:
        shown = redact(name)
        explained = _explain_offline(shown, obstacle) if obstacle else _explain(shown, error)
        raise TokenizerError(explained) from None
    if obstacle:
        logger.warning("%s, so the tokenizer %r is loaded from the local cache", obstacle, name)
    with contextlib.suppress(OSError):  # some tokenizers have no tokenizer.json
        return tokenizer, Path(cached_file(name, "tokenizer.json", **options)).parent
    return tokenizer, None


def _is_absent_from_cache(name: str) -> bool:
    """Whether the Hub's cache has no folder for `name`; False if an environment variable makes
    transformers use a separate cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    if any(variable in os.environ for variable in _CACHES_OF_TRANSFORMERS):
        return False
    return not Path(
        constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model")
    ).exists()


def _explain_offline(name: str, obstacle: str) -> str:
    return (
        f"cannot load the tokenizer {name!r}, because {obstacle} and the tokenizer is not in the "
        "local cache. Pass a folder or a tokenizer.json, or load the tokenizer once on a machine "
        "that can reach the Hub and copy that machine's cache (HF_HOME)"
    )


def _explain(name: str, error: Exception) -> str:
    first = (str(error).splitlines() or [type(error).__name__])[0]
    reason = textwrap.shorten(first, _MOST_REASON, placeholder=" …").rstrip(". ")
    if "sentencepiece" in str(error).lower():
        return (
            f"cannot load the tokenizer {name!r}, because it has no tokenizer.json, and its "
            "tokenizer.model cannot be converted. Install what the conversion needs: pip install "
            "sentencepiece protobuf tiktoken"
        )
    if Path(name).exists():
        advice = "Pass a folder that has a tokenizer.json, or that transformers can load"
    else:
        advice = "Pass a name on the Hugging Face Hub, a folder, or a tokenizer.json"
    return f"cannot load the tokenizer {name!r}: {redact(reason)}. {advice}"
