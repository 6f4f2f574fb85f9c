"""Choose the backend that encodes documents, `hf` or `fastokens`, and record the reason.

    asked "hf"          hf
    asked "auto"        fastokens if it passes every check below, else hf
    asked "fastokens"   fastokens, or an error

    version ─► features of the tokenizer.json ─► loads ─► same IDs for probes ─► for code points

For some tokenizers, fastokens silently produces different IDs. The feature check recognizes the
known cases, and the later checks look for unknown ones. For a tokenizer in the table of known
tokenizers (`is_known`), the only checks are the version, and whether fastokens can be imported, so
nodes skip the others. A loader chooses the backend when it is created, and passes the choice to its
workers. Workers still compare a sample of the IDs with hf during a run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import platform
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from cloudload.config import choices
from cloudload.data import kept_tokenizers
from cloudload.errors import TokenizerError
from cloudload.rows.tokenization.encoders import encode_flat, is_failure
from cloudload.rows.tokenization.loading import keep_hf, load_fastokens, load_hf, make_hf
from cloudload.rows.tokenization.other_libraries import library_of
from cloudload.rows.tokenization.probes import assigned_code_points, probes
from cloudload.system import machine

logger = logging.getLogger("cloudload.tokenizer")
MEASURED_VERSIONS = ("0.3.5",)
"""Versions of fastokens that were verified to produce the same IDs as `tokenizers` for tokenizers
that pass the checks below."""
# how much slower a loader is with hf, in tokens per second: 43 times with GPT-2, 37 with Llama 3
# (benchmarks/RESULTS.md, 2026-11-27)
TIMES_SLOWER = 40
_INSTALL = f"Run: pip install fastokens=={MEASURED_VERSIONS[-1]}"
# cache-key version: increment it when a check changes
CHECKS = 2
_CODE_POINTS_AT_ONCE = 64
_PASSED = "it passed every check"
_KNOWN = "it is known to pass every check with this tokenizer"

TABLE_NAME = "known_tokenizers.json"


@dataclass(frozen=True)
class Choice:
    """The chosen backend, as plain data for workers."""

    name: str
    """`hf` or `fastokens`, or the name of another library; `none` if no text is tokenized."""
    versions: str
    """Names and versions of the backend's libraries, such as `tokenizers 0.22.2`."""
    why: str
    """Why this backend was chosen, as text that follows "because"."""
    is_fallback: bool = False
    """Whether `hf` was chosen only because fastokens cannot be used."""

    @property
    def is_fast(self) -> bool:
        """Whether documents become tokens at 10 million tokens per second or more."""
        return self.name in (choices.FASTOKENS, choices.NO_BACKEND)

    @property
    def reason(self) -> str | None:
        """Why fastokens was not chosen; None if it was chosen, or if the user asked for `hf`."""
        return self.why if self.is_fallback else None

    def __str__(self) -> str:
        versions = "" if self.name == choices.NO_BACKEND else f" ({self.versions})"
        return f"{self.name}{versions}, because {self.why}"


def choose_backend(text: str, asked: str, cache_root: Path) -> Choice:
    """Choose the backend for the tokenizer.json `text`, which is empty if no text is
    tokenized.

    `asked` is "auto", "hf" or "fastokens". The result of the checks is cached in a file under
    `cache_root`. Raises `TokenizerError` if `asked` is "fastokens" and a check fails.
    """
    if not text:
        return Choice(choices.NO_BACKEND, choices.NO_BACKEND, "there is no text to tokenize")
    if library := library_of(text):
        if asked == choices.FASTOKENS:
            raise TokenizerError(
                f"tokenizer_backend is 'fastokens', but the tokenizer is one of {library}. Use "
                "'auto'"
            )
        why = f"the tokenizer is one of {library}"
        return Choice(library, f"{library} {machine.package_version(library)}", why)
    tokenizers = f"tokenizers {machine.package_version('tokenizers')}"
    refusal = None if asked == choices.HF else _find_refusal(text, cache_root)
    if asked == choices.FASTOKENS and refusal:
        advice = "Use 'auto' or 'hf'" if _is_measured() else f"{_INSTALL}, or use 'auto' or 'hf'"
        raise TokenizerError(f"tokenizer_backend is 'fastokens', but {refusal}. {advice}")
    if refusal:
        return Choice(choices.HF, tokenizers, refusal, is_fallback=True)
    if asked == choices.HF:
        return Choice(choices.HF, tokenizers, f"tokenizer_backend={asked!r}")
    if asked == choices.FASTOKENS:
        why = f"tokenizer_backend={asked!r}"
    else:
        why = _KNOWN if is_known(text, list_checked()) else _PASSED
    return Choice(
        choices.FASTOKENS, f"fastokens {machine.package_version('fastokens')}, {tokenizers}", why
    )


_warnings: set[str] = set()


def log_choice(choice: Choice) -> None:
    """Log which backend was chosen, and why.

    If fastokens was declined, logs a warning instead, once per process for each reason.
    """
    if not choice.is_fallback or choice.why in _warnings:
        logger.info("tokenizer backend: %s", choice)
        return
    _warnings.add(choice.why)
    advice = "Pass tokenizer_backend='hf' to use it without a warning"
    logger.warning(
        "tokenizer backend: %s. In measurements with the GPT-2 and Llama 3 tokenizers, hf was "
        "about %d times slower than fastokens. %s",
        *(choice, TIMES_SLOWER, advice if _is_measured() else _INSTALL),
    )


_refusals: dict[str, str | None] = {}


def _is_measured() -> bool:
    """Whether the installed version of fastokens was verified."""
    return machine.package_version("fastokens") in MEASURED_VERSIONS


def _find_refusal(text: str, cache_root: Path) -> str | None:
    """The reason not to use fastokens for this tokenizer, or None.

    A process checks each tokenizer once.
    """
    found = machine.package_version("fastokens")
    if found is None:
        return "fastokens is not installed"
    if found not in MEASURED_VERSIONS:
        return (
            f"fastokens {found} has not been verified to produce the same IDs as tokenizers, "
            f"unlike version {', '.join(MEASURED_VERSIONS)}"
        )
    digest = _hash(text)
    if digest not in _refusals:
        _refusals[digest] = _check_once(text, cache_root)
    return _refusals[digest]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _find_import_error() -> str | None:
    try:
        import fastokens  # noqa: F401
    except (ImportError, OSError) as error:
        return f"fastokens cannot be imported ({error})"
    return None


def _result_path(text: str, cache_root: Path) -> Path:
    """The file that saves the check result for this tokenizer and the installed versions."""
    return kept_tokenizers.kept_path(
        cache_root, [text], [*list_checked(), unicodedata.unidata_version]
    )


def list_checked() -> list[str]:
    """The names and versions of our checks and of the installed packages that they compare."""
    return [f"checks-{CHECKS}", *map(kept_tokenizers.with_version, ("fastokens", "tokenizers"))]


def _check_once(text: str, cache_root: Path) -> str | None:
    """Check fastokens for this tokenizer, and return the problem or None.

    A node checks each unknown tokenizer once, and checks it again only if fastokens failed to run.
    Every start tests that fastokens can be imported, because different kinds of machines may share
    the cache folder.
    """
    if (error := _find_import_error()) is not None:
        return error
    if is_known(text, list_checked()):
        return None
    path = _result_path(text, cache_root)
    try:
        return kept_tokenizers.learn_once(path, lambda: check_ids(text) or "") or None
    except _FailedError as failure:
        return str(failure)
    except BaseException as failure:
        if not is_failure(failure):
            raise
        return f"fastokens fails on some texts ({failure})"


class _FailedError(Exception):
    """Raised if fastokens cannot load a tokenizer. The result is not saved, so that the next start
    checks again."""


def check_ids(text: str) -> str | None:
    """Look for an unsupported feature, then compare the IDs, and return the problem or None."""
    content = json.loads(text)
    return (
        find_unsupported_feature(content)
        or find_probe_mismatch(text, content)
        or find_code_point_mismatch(text)
    )


# ---------------------------------------------------------------- comparison of the IDs


def find_probe_mismatch(text: str, content: Mapping[str, Any]) -> str | None:
    """Load both backends, compare their IDs for the probes, and return the problem or None.

    `content` is the parsed tokenizer.json `text`. Compares the IDs twice: with the names of special
    tokens encoded as special tokens, and as text. Raises `_FailedError` if fastokens cannot load
    the tokenizer.
    """
    with ThreadPoolExecutor(1) as thread:  # load both at once: a large vocabulary takes seconds
        loading = thread.submit(load_fastokens, text)
        strings, hf = probes(content), make_hf(text)
    try:
        fast = loading.result()
    except BaseException as error:
        if not is_failure(error):
            raise
        raise _FailedError(f"fastokens cannot load this tokenizer ({error})") from None
    for is_text in (False, True):
        hf.encode_special_tokens = is_text
        if different := _different(hf, fast, strings, is_text):
            return f"fastokens and tokenizers produce different IDs for {different[0][:60]!r}"
    keep_hf(text, hf)
    return None


def _different(hf: Any, fast: Any, strings: list[str], is_text: bool) -> list[str]:
    """The strings that the two backends encode to different IDs.

    `tokenizers` encodes the strings one at a time, because it warns at every fork after it has
    encoded a batch.
    """
    ids, offsets = encode_flat(fast, strings, is_text)
    bounds = offsets.tolist()
    return [
        string
        for string, start, stop in zip(strings, bounds[:-1], bounds[1:], strict=True)
        if hf.encode(string, add_special_tokens=False).ids != ids[start:stop].tolist()
    ]


def sweep_code_points(text: str, points: Sequence[int]) -> list[int]:
    """Find the code points that fastokens encodes to different IDs than `tokenizers`.

    Each code point is tried next to letters, a space, a digit and a newline. Code points are
    compared in groups of 64. If the IDs of a group differ, but those of each of its code points
    alone do not, the whole group is returned.
    """
    hf, fast = load_hf(text), load_fastokens(text)
    chunks = [
        points[start : start + _CODE_POINTS_AT_ONCE]
        for start in range(0, len(points), _CODE_POINTS_AT_ONCE)
    ]
    suspects = {"".join(map(_around, chunk)): chunk for chunk in chunks}
    found: list[int] = []
    for different in _different(hf, fast, list(suspects), True):
        singly = [
            point for point in suspects[different] if _different(hf, fast, [_around(point)], True)
        ]
        found += singly or suspects[different]
    return found


def find_code_point_mismatch(text: str) -> str | None:
    """Compare the backends on `assigned_code_points`, and return the problem or None."""
    found = sweep_code_points(text, assigned_code_points())
    if not found:
        return None
    return (
        f"fastokens and tokenizers produce different IDs for {len(found)} code points, such as "
        f"U+{found[0]:04X}"
    )


def _around(point: int) -> str:
    return f"a{chr(point)}b {chr(point)}1\n{chr(point)}"


def is_known(text: str, checked: Iterable[str]) -> bool:
    """Whether the tokenizer.json `text` is known to pass on this CPU architecture.

    `checked` are the names and versions of the checks and of the packages that they compare. The
    digest is computed as for a kept result, and covers the whole tokenizer.json. The table is
    written by `scripts/know_tokenizers.py`, which compares all code points. Therefore an entry,
    unlike a kept result, does not depend on the version of Unicode.
    """
    digests = read_table().get(conditions(checked))
    return digests is not None and kept_tokenizers.digest_of([text]) in digests


def conditions(checked: Iterable[str]) -> str:
    """The table's key for this CPU architecture and the versions `checked`; see `is_known`."""
    return "-".join([*checked, platform.machine()])


@functools.cache
def read_table() -> Mapping[str, Mapping[str, str]]:
    """Read the table: {conditions: {digest: tokenizer name}}. Empty if its file is missing.

    "checks-2-fastokens-0.3.5-tokenizers-0.22.2-x86_64": {"<32 hex digits>": "gpt2", …}
    """
    with contextlib.suppress(OSError):  # a program may be packaged without data files
        text = files("cloudload.rows.tokenization").joinpath(TABLE_NAME).read_text("utf-8")
        return cast("dict[str, dict[str, str]]", json.loads(text))
    return {}


def find_unsupported_feature(content: Mapping[str, Any]) -> str | None:
    """Find a feature of a tokenizer.json for which fastokens may fail or give wrong IDs.

    `content` is the parsed tokenizer.json. Returns a description of the first one found, or None.
    """
    model = content["model"]
    if model.get("type") != "BPE":
        return f"the tokenizer's model is {model.get('type')}, not BPE"
    if model.get("dropout"):
        return "the tokenizer's model has dropout"
    if affixes := [
        name for name in ("continuing_subword_prefix", "end_of_word_suffix") if model.get(name)
    ]:
        return f"the tokenizer's model has a {affixes[0]}"
    return _check_added_tokens(content.get("added_tokens") or [], model["vocab"]) or _check_bytes(
        content
    )


def _check_added_tokens(
    tokens: Iterable[Mapping[str, Any]], vocabulary: Mapping[str, int]
) -> str | None:
    for token in tokens:
        name, token_id = token["content"], token["id"]
        if vocabulary.get(name, token_id) != token_id:
            return (
                f"the tokenizer's added token {name!r} has the ID {token_id}, but its ID in the "
                f"vocabulary is {vocabulary[name]}"
            )
        if flags := [flag for flag in ("lstrip", "rstrip", "single_word") if token.get(flag)]:
            return f"the tokenizer's added token {name!r} has {flags[0]}"
    return None


def _check_bytes(content: Mapping[str, Any]) -> str | None:
    model = content["model"]
    if _has_byte_level(content.get("pre_tokenizer")) or _has_byte_level(content.get("normalizer")):
        from tokenizers.pre_tokenizers import ByteLevel

        symbols = sorted(ByteLevel.alphabet())
    elif model.get("byte_fallback"):
        symbols = [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        return "the tokenizer is not byte-level and does not fall back to bytes"
    missing = [symbol for symbol in symbols if symbol not in model["vocab"]]
    return (
        f"the tokenizer's vocabulary is missing {len(missing)} of the 256 bytes, such as "
        f"{missing[0]!r}"
        if missing
        else None
    )


def _has_byte_level(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    inner = [*(part.get("pretokenizers") or ()), *(part.get("normalizers") or ())]
    return part.get("type") == "ByteLevel" or any(map(_has_byte_level, inner))
