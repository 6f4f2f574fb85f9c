"""Find the tokenizer.json of a source, and the special tokens that its files name.

"gpt2"                                   asked of the Hub by one process of a node
"folder/", "tokenizer.json"              read from the disk
PreTrainedTokenizerFast, Tokenizer       turned into text
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from cloudload.errors import TokenizerError
from cloudload.storage.node_reads import Kept, is_verified, read_for_node, write_bytes
from cloudload.storage.versions import UNKNOWN, Version
from cloudload.tokenization.framing import (
    CONFIG_NAME,
    NamedTokens,
    list_named_tokens,
    read_named_tokens,
)
from cloudload.tokenization.hub import load_by_name
from cloudload.tokenization.kept import FOLDER


class FoundTokenizer(NamedTuple):
    """A tokenizer, before it is parsed."""

    text: str
    """The text of its tokenizer.json."""
    named: NamedTokens
    file: Path | None
    """The tokenizer.json, if it is a file."""


def find_tokenizer(source: Any, cache_root: Path | None = None) -> FoundTokenizer:
    """Find the tokenizer.json of a source; `source` is as for `load_tokenizer`.

    With `cache_root`, the Hub is asked once for the node. Raises `TokenizerError` if `source` is
    not a tokenizer, or cannot be read.
    """
    from tokenizers import Tokenizer

    if isinstance(source, Tokenizer):
        return FoundTokenizer(source.to_str(), NamedTokens(), None)
    if not isinstance(source, str | os.PathLike):
        return _from_transformers(source)
    path = Path(source).expanduser()
    file = path / "tokenizer.json" if path.is_dir() else path
    if path.is_dir() and not file.exists() and not (path / CONFIG_NAME).exists():
        raise TokenizerError(
            f"no tokenizer.json in {path}. Pass the folder of a fast tokenizer, or its "
            "tokenizer.json"
        )
    if path.is_absolute() and not path.exists():
        raise TokenizerError(
            f"no tokenizer at {path}. Pass a name on the Hugging Face Hub, a folder, or a "
            "tokenizer.json"
        )
    if not path.exists():
        name = str(source)
        return _find_by_name(name) if cache_root is None else _find_once(name, cache_root / FOLDER)
    named = read_named_tokens(file.parent)  # first, so that an error names a broken file
    return FoundTokenizer(_read(file), named, file) if file.is_file() else _find_by_name(str(path))


def _find_once(name: str, folder: Path) -> FoundTokenizer:
    """Find a tokenizer by name, unless another rank of the node has just done so."""

    def ask(_: Version | None) -> tuple[bytes, Version]:
        found = _find_by_name(name)
        file = None if found.file is None else str(found.file)
        return json.dumps([found.text, asdict(found.named), file]).encode(), UNKNOWN

    kept = Kept(lambda digest: folder / f"{digest}.found", is_verified, write_bytes)
    with contextlib.suppress(OSError):
        read = read_for_node(f"the tokenizer {name}", folder, kept, ask)
        text, named, file = json.loads(kept.path_of(read.digest).read_bytes())
        return FoundTokenizer(text, NamedTokens(**named), None if file is None else Path(file))
    return _find_by_name(name)


def _find_by_name(name: str) -> FoundTokenizer:
    tokenizer, folder = load_by_name(name)
    if folder is None:
        return _from_transformers(tokenizer)
    # use the published file: transformers 5 converts some tokenizers, which changes their IDs
    file = folder / "tokenizer.json"
    return FoundTokenizer(_read(file), read_named_tokens(folder), file)


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise explain_file(file, error) from error


def explain_file(file: Path, error: Exception) -> TokenizerError:
    """The error about a file that is not a tokenizer.json."""
    return TokenizerError(
        f"{file} is not a tokenizer.json: {error}. Pass the tokenizer.json of a fast tokenizer"
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
    return FoundTokenizer(text, list_named_tokens(tokenizer), None)
