"""The gate: by which backend a tokenizer's documents are encoded, `hf` or `fastokens`, and why.

    asked "hf"          hf
    asked "auto"        fastokens where it passes all of these, else hf
    asked "fastokens"   the same, but an error where it does not

    version ─► what its tokenizer.json holds ─► it loads ─► the same ids for probes ─► and for every assigned code point

fastokens differs in silence for some tokenizers, all of which the second step knows by their tokenizer.json; the steps after it
are there for what nobody knows yet. The choice is made once, in the training process, and workers are told.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import random
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cloudload.config import FASTOKENS, HF
from cloudload.encoders import encode_flat, is_failure, keep_hf, load_fastokens, load_hf, make_hf
from cloudload.errors import TokenizerError
from cloudload.system.temp_files import part_of

logger = logging.getLogger(__name__)

MEASURED_VERSIONS = ("0.3.5",)
"""The versions of fastokens that were found to give tokenizers' ids."""

_FOLDER = "tokenizers"
# part of the name of a kept result: one more whenever the sweep is another
_SWEEP = 1
# the last line of a finding: one that is cut short is none
_SWEPT = "swept"
_CODE_POINTS_AT_ONCE = 64
_NUM_FUZZED, _NUM_WORDS = 400, 600
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True)
class Choice:
    """A backend as plain data, ready for another process."""

    name: str
    """`hf` or `fastokens`."""
    versions: str
    """Of the libraries that had a say, such as `fastokens 0.3.5, tokenizers 0.22.2`."""
    reason: str | None = None
    """Why `auto` did not take fastokens; None where it did, or was not asked."""


def choose_backend(text: str, asked: str, cache_root: Path) -> Choice:
    """The backend for a tokenizer.json, given as its text. The sweep of code points is made once for each `cache_root`.

    Raises `TokenizerError` where fastokens is asked for and does not pass.
    """
    tokenizers = f"tokenizers {version('tokenizers')}"
    refusal = None if asked == HF else _find_refusal(text, cache_root)
    if asked == FASTOKENS and refusal:
        raise TokenizerError(
            f"tokenizer_backend is 'fastokens', but {refusal}. Use 'auto' or 'hf': tokenizers gives the ids that are right"
        )
    if asked == HF or refusal:
        choice = Choice(HF, tokenizers, refusal)
    else:
        choice = Choice(FASTOKENS, f"fastokens {version('fastokens')}, {tokenizers}")
    logger.info("tokenizer backend: %s (%s)%s", choice.name, choice.versions, f": {refusal}" if refusal else "")
    return choice


_refusals: dict[str, str | None] = {}


def _find_refusal(text: str, cache_root: Path) -> str | None:
    """Why fastokens is not to be had for this tokenizer; asked once a process."""
    try:
        found = version("fastokens")
    except PackageNotFoundError:
        return "fastokens is not installed: pip install 'cloudload[fast]'"
    if found not in MEASURED_VERSIONS:
        return f"fastokens {found} has not been measured, only {', '.join(MEASURED_VERSIONS)}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    if digest not in _refusals:
        content = json.loads(text)
        _refusals[digest] = check_structure(content) or check_probes(text, content) or _sweep_once(text, digest, cache_root)
    return _refusals[digest]


# ---------------------------------------------------------------- what the tokenizer.json holds


def check_structure(content: Mapping[str, Any]) -> str | None:
    """Why a tokenizer.json is one for which fastokens may give other ids, or fail; None where it is not."""
    model = content["model"]
    if model.get("type") != "BPE":
        return f"its model is {model.get('type')}, not BPE"
    if model.get("dropout"):
        return "its model has dropout"
    if affixes := [name for name in ("continuing_subword_prefix", "end_of_word_suffix") if model.get(name)]:
        return f"its model has a {affixes[0]}"
    return _check_added_tokens(content.get("added_tokens") or [], model["vocab"]) or _check_bytes(content)


def _check_added_tokens(tokens: Iterable[Mapping[str, Any]], vocabulary: Mapping[str, int]) -> str | None:
    for token in tokens:
        name, number = token["content"], token["id"]
        if vocabulary.get(name, number) != number:
            return f"its added token {name!r} has the id {number}, but {vocabulary[name]} in the vocabulary"
        if flags := [flag for flag in ("lstrip", "rstrip", "single_word") if token.get(flag)]:
            return f"its added token {name!r} has {flags[0]}"
    return None


def _check_bytes(content: Mapping[str, Any]) -> str | None:
    model = content["model"]
    if _has_byte_level(content.get("pre_tokenizer")) or _has_byte_level(content.get("normalizer")):
        from tokenizers.pre_tokenizers import ByteLevel

        symbols = sorted(ByteLevel.alphabet())
    elif model.get("byte_fallback"):
        symbols = [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        return "it is neither byte-level nor falls back to bytes"
    missing = [symbol for symbol in symbols if symbol not in model["vocab"]]
    return f"its vocabulary lacks {len(missing)} of 256 bytes, such as {missing[0]!r}" if missing else None


def _has_byte_level(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    inner = [*(part.get("pretokenizers") or ()), *(part.get("normalizers") or ())]
    return part.get("type") == "ByteLevel" or any(map(_has_byte_level, inner))


# ---------------------------------------------------------------- whether the ids are the same


def check_probes(text: str, content: Mapping[str, Any]) -> str | None:
    """Load both, and compare them on `probes`, with special tokens as what they are and as text; what is wrong, or None."""
    with ThreadPoolExecutor(1) as thread:  # beside hf: a large vocabulary takes seconds
        loading = thread.submit(load_fastokens, text)
        strings, hf = probes(content), make_hf(text)
    try:
        fast = loading.result()
    except BaseException as error:
        if not is_failure(error):
            raise
        return f"it does not load this tokenizer ({error})"
    for is_text in (False, True):
        hf.encode_special_tokens = is_text
        try:
            if different := _different(hf, fast, strings, is_text):
                return f"it gives other ids than tokenizers for {different[0][:60]!r}"
        except BaseException as error:
            if not is_failure(error):
                raise
            return f"it fails on some texts ({error})"
    keep_hf(text, hf)
    return None


def _different(hf: Any, fast: Any, strings: list[str], is_text: bool) -> list[str]:
    """The strings that have other ids. One by one for `tokenizers`: after a batch it would warn of every fork."""
    ids, offsets = encode_flat(fast, strings, is_text)
    bounds = offsets.tolist()
    return [
        string
        for string, start, stop in zip(strings, bounds[:-1], bounds[1:], strict=True)
        if hf.encode(string, add_special_tokens=False).ids != ids[start:stop].tolist()
    ]


def probes(content: Mapping[str, Any]) -> list[str]:
    """Strings on which tokenizers are known to differ, and others made of them and of the tokenizer's own; always the same."""
    added = [token["content"] for token in content.get("added_tokens") or []]
    added = added[:24] + added[-8:]
    vocabulary = list(content["model"]["vocab"])
    words = vocabulary[:: max(1, len(vocabulary) // _NUM_WORDS)]
    special = [form.format(name) for name in added for form in ("{0}", " {0} ", "a{0}b", "{0}{0}", "\n{0}\n\n", "{0}.")]
    special += [name[:-1] for name in added] + [name.upper() for name in added]
    pieces = [*_PIECES, *added, *words[::8]]
    chance = random.Random(0)
    fuzzed = ["".join(chance.choices(pieces, k=chance.randint(1, 24))) for _ in range(_NUM_FUZZED)]
    return [*_PIECES, *_LONG, *special, *words, " ".join(words), "".join(words), "", *fuzzed]


_PIECES = [
    *(
        "a",
        "I",
        "the",
        "The",
        " the",
        "  the",
        "THE",
        "hello world",
        "Hello, World!",
        "don't",
        "DON'T",
        "I'll've",
        "we'd",
        "x'S y'RE",
    ),
    *(
        "\u017ft'\u017f",
        "it\u2019s",
        "'\u212a",
        "\u01c5a",
        "\u0130I\u0131i",
        "stra\u00dfe STRASSE",
        "\ufb01n",
        "e\u0301\u0301",
        "\u00e9",
    ),
    *(
        "0",
        "12",
        "1234567",
        "3.14e-10",
        "\u0661\u0662\u0663",
        "\u00b2\u00bd",
        "\u2167\u216b",
        "\U0001d7d8\U0001d7d9",
        "1,000",
        "0x1F",
        "v2.0",
    ),
    *(
        " ",
        "  ",
        "   a",
        "a   ",
        "\t",
        "\t\t x",
        "\n",
        "\n\n",
        " \n",
        "\n ",
        "\r\n",
        "\r",
        " \r\n\t ",
        "a\n\n\n b",
        "\x0b\x0c",
        "\x1c\x1d",
    ),
    *(
        "\u00a0",
        "\u00a0a",
        " \u00a0 ",
        "\u2003a",
        "\u3000",
        "\u2028",
        "\u2029",
        "\u0085",
        "\u200b",
        "\u180e",
        "\ufeff",
        "a\u00ad-",
    ),
    *(
        "\x00",
        "\x01\x7f",
        "\x80\x9f",
        "\ufffd",
        "\ufffe",
        "\uffff",
        "\U0010ffff",
        "\ue000",
        "\u0378",
        "\U000e0001",
        "\u2581",
        "a\u2581b",
    ),
    *(
        "!!!",
        "...",
        "?!",
        "--",
        "__init__",
        "#include <x>",
        "a=b;",
        "{}[]()",
        "/* */",
        "// x",
        "\\n",
        '"q"',
        "$%^&*",
        "\u2026\u2014\u201c",
    ),
    *(
        "\u4f60\u597d\u4e16\u754c",
        "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
        "\ud55c\uad6d\uc5b4",
        "\u1112\u1161\u11ab",
        "\u30ac\u30ab\u3099",
    ),
    *(
        "\u043f\u0440\u0438\u0432\u0435\u0442",
        "\u0645\u0631\u062d\u0628\u0627",
        "\u05e9\u05dc\u05d5\u05dd",
        "\u0928\u092e\u0938\u094d\u0924\u0947",
    ),
    *(
        "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
        "\u1ea5\u1ebf",
        "a\u0323\u0307",
        "\u0f68\u0f7c\u0f7e",
        "\u202eabc\u202c",
        "\u0344",
        "\u2126\u00c5\u212b",
    ),
    *(
        "\U0001f600",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f1e9\U0001f1ea",
        "\u2764\ufe0f",
        "\U0001f44d\U0001f3fd",
        "\U00020000",
    ),
    *(
        "<|endoftext|>",
        "<s>",
        "</s>",
        "<unk>",
        "<0x0A>",
        "<0xFF>",
        "<|im_start|>user",
        "[INST]",
        "[MASK]",
        "\u0120the",
        "\u010a",
        "##ing",
    ),
    *(
        "https://example.org/a?b=c&d=%20",
        "user@example.org",
        "CamelCaseWord",
        "snake_case_word",
        "    def f(self):\n        return 1\n",
    ),
]
_LONG = [
    *(
        "a" * 3_000,
        " " * 1_000,
        "\n" * 1_000,
        "ab" * 1_500,
        "1" * 1_000,
        "\u4e00" * 500,
        "\U0001f600" * 300,
        "-" * 1_000,
        "\t " * 500,
    ),
    *(
        "\u0301" * 300,
        "a\u0301" * 300,
        " \n" * 500,
        "'s" * 500,
        "\x00" * 500,
        "aB" * 500,
        "\r\n" * 500,
        "\u00a0" * 500,
        "abcdefghij" * 200,
    ),
]


# ---------------------------------------------------------------- code points


def assigned_code_points() -> list[int]:
    """All that Unicode, as this Python knows it, has given a character to."""
    return [point for point in all_code_points() if unicodedata.category(chr(point)) not in ("Cn", "Co")]


def all_code_points() -> list[int]:
    """All that may stand in a text: 1,112,064."""
    return [point for point in range(0x110000) if point not in _SURROGATES]


def sweep_code_points(text: str, points: Sequence[int]) -> list[int]:
    """The code points among `points` with which texts have other ids by fastokens: between letters, spaces, digits and ends."""
    hf, fast = load_hf(text), load_fastokens(text)
    chunks = [points[start : start + _CODE_POINTS_AT_ONCE] for start in range(0, len(points), _CODE_POINTS_AT_ONCE)]
    suspects = {"".join(map(_around, chunk)): chunk for chunk in chunks}
    found: list[int] = []
    for different in _different(hf, fast, list(suspects), True):
        singly = [point for point in suspects[different] if _different(hf, fast, [_around(point)], True)]
        found += singly or suspects[different]
    return found


def _around(point: int) -> str:
    return f"a{chr(point)}b {chr(point)}1\n{chr(point)}"


def _sweep_once(text: str, digest: str, cache_root: Path) -> str | None:
    """What is wrong with the assigned code points, or None; looked up where it was found before."""
    names = (f"sweep-{_SWEEP}", *(f"{name}-{version(name)}" for name in ("fastokens", "tokenizers")), unicodedata.unidata_version)
    path = cache_root / _FOLDER / "-".join([digest, *names])
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found_before, _, mark = path.read_text("utf-8").partition("\n")
        if mark == _SWEPT:
            return found_before or None
    try:
        found = sweep_code_points(text, assigned_code_points())
    except BaseException as error:
        if not is_failure(error):
            raise
        return f"it fails on some code points ({error})"
    refusal = f"it gives other ids than tokenizers for {len(found)} code points, such as U+{found[0]:04X}" if found else None
    # a folder that cannot be written to costs another sweep, and no more
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with part_of(path) as part:
            part.write_text(f"{refusal or ''}\n{_SWEPT}", "utf-8")
            part.replace(path)
    return refusal
