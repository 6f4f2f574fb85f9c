"""Strings on which the tokenizer backends are compared before fastokens is used.

known differences ───┐
added tokens ────────┼─► `probes`: usually about 1,200,     `assigned_code_points`: compared
vocabulary ──────────┘    400 of them random mixtures        next to a few other characters
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Mapping
from typing import Any

_NUM_FUZZED, _NUM_WORDS = 400, 600
_SURROGATES = range(0xD800, 0xE000)


def probes(content: Mapping[str, Any]) -> list[str]:
    """List the probes for the parsed tokenizer.json `content`. The list is deterministic.

    The probes are strings on which tokenizers often differ, a sample of the tokenizer's added
    tokens and vocabulary, and random mixtures of all these.
    """
    added = [token["content"] for token in content.get("added_tokens") or []]
    added = added[:24] + added[-8:]
    vocabulary = list(content["model"]["vocab"])
    words = vocabulary[:: max(1, len(vocabulary) // _NUM_WORDS)]
    special = [
        form.format(name)
        for name in added
        for form in ("{0}", " {0} ", "a{0}b", "{0}{0}", "\n{0}\n\n", "{0}.")
    ]
    special += [name[:-1] for name in added] + [name.upper() for name in added]
    pieces = [*_PIECES, *added, *words[::8]]
    chance = random.Random(0)
    fuzzed = ["".join(chance.choices(pieces, k=chance.randint(1, 24))) for _ in range(_NUM_FUZZED)]
    return [*_PIECES, *_LONG, *special, *words, " ".join(words), "".join(words), "", *fuzzed]


# `token_ids` in a state is a hash of these texts' IDs: if you change a text, rename that field
FIXED_TEXTS = (
    *("The quick brown fox jumps over the lazy dog.", "I'll don't WE'D've it\u2019s 'S", "aAbBcC"),
    *("0 12 345 6789 1234567890 3.14e-10 1,000 0x1F", "\u0661\u0662 \u00b2\u00bd \u2167"),
    *("  two   three    four", "\t\ttabs\n\nlines\r\n \n", "end ", "\u00a0\u2003\u3000\u200b"),
    *("#include <x> /* a=b; */ {}[]()", "__init__ CamelCase snake_case --flag", "\\n $%^&*!?..."),
    *("Stra\u00dfe \u00e9 e\u0301 \ufb01 \u0130\u0131", "\u4f60\u597d\u4e16\u754c\u3002"),
    *("\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8", "\ud55c\uad6d\uc5b4\u1112\u1161"),
    *("\u043f\u0440\u0438\u0432\u0435\u0442", "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc"),
    *("\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35"),
    *("\U0001f600\U0001f468\u200d\U0001f469\u2764\ufe0f", "\U00020000\U0010ffff\x00\x7f"),
    *("<|endoftext|><s></s><unk>[MASK]<0x0A>", "\u2581a\u2581b \u0120the", "a" * 300, " " * 100),
)

_PIECES = [
    *("a", "I", "the", "The", " the", "  the", "THE", "hello world", "Hello, World!", "don't"),
    *("DON'T", "I'll've", "we'd", "x'S y'RE"),
    *("\u017ft'\u017f", "it\u2019s", "'\u212a", "\u01c5a", "\u0130I\u0131i", "stra\u00dfe STRASSE"),
    *("\ufb01n", "e\u0301\u0301", "\u00e9"),
    *("0", "12", "1234567", "3.14e-10", "\u0661\u0662\u0663", "\u00b2\u00bd", "\u2167\u216b"),
    *("\U0001d7d8\U0001d7d9", "1,000", "0x1F", "v2.0"),
    *(" ", "  ", "   a", "a   ", "\t", "\t\t x", "\n", "\n\n", " \n", "\n ", "\r\n", "\r"),
    *(" \r\n\t ", "a\n\n\n b", "\x0b\x0c", "\x1c\x1d"),
    *("\u00a0", "\u00a0a", " \u00a0 ", "\u2003a", "\u3000", "\u2028", "\u2029", "\u0085", "\u200b"),
    *("\u180e", "\ufeff", "a\u00ad-"),
    *("\x00", "\x01\x7f", "\x80\x9f", "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\ue000"),
    *("\u0378", "\U000e0001", "\u2581", "a\u2581b"),
    *("!!!", "...", "?!", "--", "__init__", "#include <x>", "a=b;", "{}[]()", "/* */", "// x"),
    *("\\n", '"q"', "$%^&*", "\u2026\u2014\u201c"),
    *("\u4f60\u597d\u4e16\u754c", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8"),
    *("\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab", "\u30ac\u30ab\u3099"),
    *("\u043f\u0440\u0438\u0432\u0435\u0442", "\u0645\u0631\u062d\u0628\u0627"),
    *("\u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947"),
    *("\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u1ea5\u1ebf", "a\u0323\u0307"),
    *("\u0f68\u0f7c\u0f7e", "\u202eabc\u202c", "\u0344", "\u2126\u00c5\u212b"),
    *("\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea"),
    *("\u2764\ufe0f", "\U0001f44d\U0001f3fd", "\U00020000"),
    *("<|endoftext|>", "<s>", "</s>", "<unk>", "<0x0A>", "<0xFF>", "<|im_start|>user", "[INST]"),
    *("[MASK]", "\u0120the", "\u010a", "##ing"),
    *("https://example.org/a?b=c&d=%20", "user@example.org", "CamelCaseWord", "snake_case_word"),
    "    def f(self):\n        return 1\n",
]
_LONG = [
    *("a" * 3_000, " " * 1_000, "\n" * 1_000, "ab" * 1_500, "1" * 1_000, "\u4e00" * 500),
    *("\U0001f600" * 300, "-" * 1_000, "\t " * 500),
    *("\u0301" * 300, "a\u0301" * 300, " \n" * 500, "'s" * 500, "\x00" * 500, "aB" * 500),
    *("\r\n" * 500, "\u00a0" * 500, "abcdefghij" * 200),
]

# ---------------------------------------------------------------- code points


def assigned_code_points() -> list[int]:
    """The code points assigned by the version of Unicode in this Python.

    Leaves out surrogates and private-use code points.
    """
    return [
        point for point in all_code_points() if unicodedata.category(chr(point)) not in ("Cn", "Co")
    ]


def all_code_points() -> list[int]:
    """The 1,112,064 code points that a text can contain: all except the surrogates."""
    return [point for point in range(0x110000) if point not in _SURROGATES]
