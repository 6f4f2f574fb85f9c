"""Load a tokenizer.json as the tokenizer of either backend, once per process.

    load_hf           `tokenizers.Tokenizer`, or one of another library with its methods
    load_fastokens    `fastokens.Tokenizer`
    start_loading     `load_fastokens` in a thread, before the tokenizer is needed

A large vocabulary takes up to a second to load. The last tokenizer that a process loaded is cached,
and forked workers share it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cloudload.config import choices
from cloudload.rows.tokenization.other_libraries import library_of, parse_other

_kept: dict[str, Any] = {}


def shorten_merges(text: str, content: Mapping[str, Any]) -> str:
    """Write each merge of the tokenizer.json `text` as "a b", not ["a", "b"].

    This makes fastokens load a large vocabulary a sixth faster. `text` must be as `tokenizers`
    writes it, and `content` is the parsed `text`. Returns `text` unchanged if it has no merges, or
    if one of them cannot be written as "a b": `tokenizers` splits this form at its only space, and
    ignores a merge that begins with "#version".
    """
    # this cannot match inside a token, where quotes are escaped; `tokenizers` writes merges last
    before, field, after = text.partition('"merges":[[')
    if not field or not after.endswith('"]]}}'):
        return text
    merges = content["model"]["merges"]
    short = list(map(" ".join, merges))
    if "".join(short).count(" ") > len(short) or any(each[:8] == "#version" for each in short):
        return text
    written = json.dumps(short, ensure_ascii=False, separators=(",", ":"))
    return f'{before}"merges":{written}}}}}'


def load_hf(text: str) -> Any:
    """Load the `tokenizers.Tokenizer` for the tokenizer.json `text`, or that of another library.

    The tokenizer encodes the names of special tokens as text. The last one loaded is cached.
    """
    tokenizer = _kept.get(text)
    if tokenizer is None:
        tokenizer = make_hf(text)
        keep_hf(text, tokenizer)
    return tokenizer


@functools.lru_cache(maxsize=1)
def load_special_hf(text: str) -> Any:
    """Load a tokenizer like `load_hf`, but encode the names of special tokens as these tokens.

    The last one loaded is cached.
    """
    tokenizer = make_hf(text)
    tokenizer.encode_special_tokens = False
    return tokenizer


def make_hf(text: str) -> Any:
    """Create the tokenizer that `load_hf` returns, but without caching it, so that the caller may
    modify it."""
    if library_of(text):
        return parse_other(text)
    tokenizer = parse_hf(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def parse_hf(text: str) -> Any:
    """Parse the tokenizer.json `text` with `tokenizers`. Raises any error of `tokenizers`."""
    from tokenizers import Tokenizer

    # parse in a thread with a separate heap, because parsing fragments the heap, and encoding with
    # a fragmented heap is up to a third slower
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(Tokenizer.from_str, text).result()


def has_hf(text: str) -> bool:
    """Whether `load_hf` has cached the tokenizer for `text`."""
    return text in _kept


def keep_hf(text: str, tokenizer: Any) -> None:
    """Cache `tokenizer`, so that `load_hf` returns it for `text`. Drops the one cached before."""
    _kept.clear()
    _kept[text] = tokenizer


@dataclass(frozen=True)
class _Loading:
    """A `fastokens.Tokenizer` that a thread is loading or has loaded."""

    owner: int
    """The ID of the process that owns the thread, because a forked child has no copy of it."""
    tokenizer: Future[Any]


_loadings: dict[str, _Loading] = {}


def start_loading(text: str) -> Future[Any]:
    """Start loading the tokenizer for `load_fastokens` in a thread, unless this was done before."""
    loading = _loadings.get(text)
    if loading is None or not (loading.tokenizer.done() or loading.owner == os.getpid()):
        thread = ThreadPoolExecutor(1, "cloudload-load")
        loading = _Loading(os.getpid(), thread.submit(make_fastokens, text))
        thread.shutdown(wait=False)
        _loadings.clear()
        _loadings[text] = loading
    return loading.tokenizer


def load_fastokens(text: str) -> Any:
    """Load the `fastokens.Tokenizer` for the tokenizer.json `text`.

    The last one loaded is cached. Raises `ImportError` if fastokens is not installed, and any error
    that fastokens raises.
    """
    try:
        return start_loading(text).result()
    except BaseException:
        _loadings.clear()
        raise


def make_fastokens(text: str) -> Any:
    """Create the tokenizer that `load_fastokens` returns, but without caching it."""
    # use one thread, because we parallelize across processes; fastokens reads this on first use
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    from fastokens import Tokenizer

    tokenizer = Tokenizer.from_json_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def preload(text: str, backend: str) -> None:
    """Load the backend's tokenizer in this process, so that forked workers share it.

    If loading fails here, the workers try again, and report the error.
    """
    with contextlib.suppress(Exception):
        (load_fastokens if backend == choices.FASTOKENS else load_hf)(text)
