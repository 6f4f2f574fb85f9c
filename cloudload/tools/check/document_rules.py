"""Choose the rules for documents and their limits, and list the test of each rule.

    names, max_bytes, tokenizer ─► DocumentRules ─► list_tests ─► (kind, test of a text's bytes)

A test returns a description of what is wrong with a text, or None. It reads UTF-8 bytes rather than
`str`, because one or two fast scans are then enough for most texts. One test finds mojibake: text
that was decoded with the wrong encoding and then encoded again as UTF-8.

    é is c3 a9       read as Latin-1 or Windows-1252    Ã©     c3 83 c2 a9
    “ is e2 80 9c    read as Windows-1252               â€œ   c3 a2 e2 82 ac c5 93

The wrong encoding turns each UTF-8 lead byte into one of a few letters, and each continuation byte
into a symbol or an unusual letter. So mojibake contains one of those letters, followed by one such
character for each continuation byte. Correct text rarely contains such a sequence. Two kinds of
sequences are allowed because correct text contains them: punctuation after a capital letter, such
as `É»`, and characters that may end a word before punctuation, such as `íš“` or `é®”`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudload.config import checks
from cloudload.tools.check.findings import Finding, find

if TYPE_CHECKING:
    from cloudload.rows import TokenizerSpec

EMPTY_TEXT, LONG_TEXT = "text-empty", "text-long"
CONTROL_TEXT, MOJIBAKE, SPECIAL_TEXT = "text-control", "text-mojibake", "text-special"
FRAMED_TEXT, REPEATED_TEXT, REPEATED_ID = "text-framed", "text-repeated", "id-repeated"
DOCUMENT_RULES = (
    *(EMPTY_TEXT, LONG_TEXT, CONTROL_TEXT, MOJIBAKE, SPECIAL_TEXT, FRAMED_TEXT),
    *(REPEATED_TEXT, REPEATED_ID),
)
"""The names of all rules, which are also kinds of findings."""
ALL, NONE = "all", "none"
NO_TOKEN = "none"

Test = Callable[[bytes], str | None]

# all control characters but white space, backspace, escape (terminal colors), and next line
_CONTROL = bytes([*range(8), *range(14, 27), *range(28, 32), 127])
_FIRST_CONTROL = re.compile(b"[%b]" % re.escape(_CONTROL))
_LATER_CONTROL = re.compile(b"\xc2[\x80-\x84\x86-\x9f]")
_LIKE_SPECIAL = re.compile(rb"<\|[A-Za-z0-9_]{1,64}\|>")
_HEAD_BYTES = 64

_PUNCTUATION = "\xa0«»“”…\u2018\u2019\u2013\u2014"  # quotation marks and dashes
_BETWEEN = _PUNCTUATION + "¿¡\u2039\u203a\xad"  # may occur between words or between letters
_ENDING = "šžŠŽœŒŸ™®©°ªº¹²³"  # may occur at the end of a word
_EXCERPT_BYTES = 24

_REPLACEMENT = "\ufffd".encode()


@dataclass(frozen=True)
class DocumentRules:
    """The rules to apply to documents, as plain data that can be sent to workers."""

    names: frozenset[str]
    max_bytes: int
    """Maximum size of a text, in bytes of UTF-8."""
    special_tokens: tuple[str, ...] = ()
    """The tokenizer's special tokens. If empty, anything like `<|name|>` is special."""
    bos: str = ""
    """The token that the tokenizer puts before each document; "" if it puts none."""
    eos: str = ""

    @property
    def hashed(self) -> tuple[str, ...]:
        """The rules that compare documents by hash: those for repeated texts and IDs."""
        return tuple(name for name in (REPEATED_TEXT, REPEATED_ID) if name in self.names)


def choose_rules(
    names: str | Collection[str], max_bytes: int | str, tokenizer: TokenizerSpec | None = None
) -> DocumentRules:
    """Choose rules by name, `all` or `none`. Raises `ValueError` for an unknown name or bad size.

    `all` omits `text-framed` if there is no tokenizer.
    """
    asked = [names] if isinstance(names, str) else list(names)
    if unknown := [each for each in asked if each not in (*DOCUMENT_RULES, ALL, NONE)]:
        raise ValueError(
            f"rules has the unknown rule {unknown[0]!r}. Use all, none, or any of "
            f"{', '.join(DOCUMENT_RULES)}"
        )
    if ALL in asked:
        asked = [each for each in DOCUMENT_RULES if tokenizer or each != FRAMED_TEXT]
    if FRAMED_TEXT in asked and tokenizer is None:
        raise ValueError(
            f"the rule {FRAMED_TEXT} requires a tokenizer. Pass a tokenizer, or omit the rule"
        )
    chosen = frozenset(asked) - {NONE}
    if tokenizer is None:
        return DocumentRules(chosen, checks.parse_bytes(max_bytes))
    bos, eos = _name_frame(tokenizer)
    added = json.loads(tokenizer.json).get("added_tokens", [])
    special = tuple(each["content"] for each in added if each.get("special"))
    return DocumentRules(chosen, checks.parse_bytes(max_bytes), special, bos, eos)


def _name_frame(tokenizer: TokenizerSpec) -> tuple[str, str]:
    """Return the text of the bos and eos that the tokenizer adds to documents; "" for none."""
    from cloudload.rows import load_hf

    hf = load_hf(tokenizer.json)
    bos, eos = (None if id is None else hf.id_to_token(id) for id in tokenizer.frames[0])
    return bos or "", eos or ""


def check_frame(rules: DocumentRules, origin: str, **expected: str | None) -> Iterator[Finding]:
    """Compare the tokens that the tokenizer puts around documents with the expected ones.

    `expected` maps bos and eos to a token, to `none`, or to None to accept any. `origin` names the
    files that set the tokenizer's bos and eos.
    """
    for name, token in expected.items():
        found = getattr(rules, name)
        if token is not None and found != ("" if token == NO_TOKEN else token):
            asked = f"no {name}" if token == NO_TOKEN else f"{name} {token!r}"
            got = f"{name} {found!r}" if found else f"no {name}"
            yield find(
                "framing-differs",
                "",
                f"documents get {got} instead of {asked}. The tokenizer adds {origin}",
            )


def list_tests(rules: DocumentRules) -> list[tuple[str, Test]]:
    """List the tests that each document must pass, in order."""
    tests: dict[str, Test] = {
        EMPTY_TEXT: _find_empty,
        LONG_TEXT: _LongText(rules.max_bytes),
        CONTROL_TEXT: _find_control,
        MOJIBAKE: find_mojibake,
        SPECIAL_TEXT: _SpecialText(rules.special_tokens),
        FRAMED_TEXT: _FramedText(rules.bos, rules.eos),
    }
    return [(name, test) for name, test in tests.items() if name in rules.names]


def is_blank(text: bytes) -> bool:
    """Whether UTF-8 text is empty or only white space."""
    if not text:
        return True
    head = text[:_HEAD_BYTES].decode("utf-8", "ignore")
    return (not head or head.isspace()) and text.decode("utf-8", "replace").isspace()


def _find_empty(text: bytes) -> str | None:
    if not is_blank(text):
        return None
    if not text:
        return "is empty"
    return f"is only white space ({len(text):,} byte{'s' * (len(text) > 1)})"


def _find_control(text: bytes) -> str | None:
    count = len(text) - len(text.translate(None, _CONTROL))
    found = _FIRST_CONTROL.search(text) if count else None
    if not text.isascii():
        later = list(_LATER_CONTROL.finditer(text))
        count += len(later)
        found = min([*filter(None, [found]), *later[:1]], key=re.Match.start, default=None)
    if found is None:
        return None
    first = f"U+{ord(found[0].decode('utf-8')):04X} at byte {found.start():,}"
    return f"has {count:,} control character{'s' * (count > 1)}, the first {first}"


class _LongText:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def __call__(self, text: bytes) -> str | None:
        if len(text) <= self._max_bytes:
            return None
        return f"has {len(text):,} bytes, more than {self._max_bytes:,}"


class _SpecialText:
    def __init__(self, tokens: Iterable[str]) -> None:
        longest_first = sorted((re.escape(each.encode()) for each in tokens), reverse=True)
        self._pattern = re.compile(b"|".join(longest_first)) if longest_first else _LIKE_SPECIAL

    def __call__(self, text: bytes) -> str | None:
        found = self._pattern.search(text)
        if found is None:
            return None
        return f"has {found[0].decode('utf-8')} at byte {found.start():,}"


class _FramedText:
    def __init__(self, bos: str, eos: str) -> None:
        self._bos, self._eos = bos, eos

    def __call__(self, text: bytes) -> str | None:
        if self._bos and text.startswith(self._bos.encode()):
            return f"begins with {self._bos}, which the loader also adds"
        if self._eos and text.rstrip().endswith(self._eos.encode()):
            return f"ends with {self._eos}, which the loader also adds"
        return None


def parse_limits(limits: Any, chosen: Collection[str]) -> dict[str, float]:
    """Return the share of documents (0 to 1) above which each rule makes a dataset unsound.

    `limits` is a name, several names, or a mapping of names to shares such as 0.001 or `0.1%`.
    `all` means every chosen rule that is not named. Raises `ValueError` for an unknown rule,
    an invalid share, or a rule that is not chosen, because that rule could never fail.
    """
    names = [limits] if isinstance(limits, str) else limits
    given = names if isinstance(names, Mapping) else dict.fromkeys(names, 0)
    shares = {name: _parse_share(name, share) for name, share in given.items()}
    if unknown := [name for name in shares if name not in (*DOCUMENT_RULES, ALL)]:
        known = ", ".join(DOCUMENT_RULES)
        raise ValueError(f"fail_on has the unknown rule {unknown[0]!r}. Use all, or any of {known}")
    if shares and not chosen:
        raise ValueError(f"fail_on has {next(iter(shares))!r}, but rules is empty. Add rules to it")
    if idle := [name for name in shares if name not in (*chosen, ALL)]:
        needed = "Pass a tokenizer" if idle[0] == FRAMED_TEXT else "Add it to rules"
        raise ValueError(f"fail_on has {idle[0]!r}, but this rule does not apply. {needed}")
    every = [name for name in DOCUMENT_RULES if name in chosen]
    of_all = dict.fromkeys(every, shares.pop(ALL)) if ALL in shares else {}
    return of_all | shares


def _parse_share(name: str, value: Any) -> float:
    text = str(value)
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError(f"fail_on has {name}={value}. Use a share of documents, such as 0.1%")
    return share


def _alternatives(characters: set[str]) -> bytes:
    return b"(?:" + b"|".join(sorted(each.encode() for each in characters)) + b")"


def _read_rest(*encodings: str) -> set[str]:
    """Return the characters that bytes 80 to bf, which continue UTF-8, have in `encodings`."""
    rest = bytes(range(0x80, 0xC0))
    return {each for name in encodings for each in rest.decode(name, "ignore")}


def _compile() -> tuple[re.Pattern[bytes], ...]:
    """Compile one pattern per first byte, because searching for a fixed first byte is fast."""
    western = _read_rest("latin-1", "cp1252")
    any_, symbol = _alternatives(western), _alternatives(western - set(_PUNCTUATION))
    ending = _alternatives(set(_ENDING))
    certain = _alternatives(western - set(_BETWEEN + _ENDING))
    latin = (
        b"\x82%b" % any_,  # Â£
        b"\x83%b" % symbol,  # Ã©
        b"[\x84-\x9f]%b\xc3[\x84-\x9f]%b" % (any_, any_),  # ÐŸÑ€
        # â€™
        b"[\xa0-\xaf](?:%b%b|%b%b|%b%b)" % (certain, any_, any_, certain, ending, ending),
        b"[\xb0-\xb4]%b%b%b" % (any_, any_, any_),  # an emoji
    )
    cyrillic = b"\xd0[\xa0\xa1]" + _alternatives(_read_rest("cp1251"))
    return re.compile(b"\xc3(?:" + b"|".join(latin) + b")"), re.compile(cyrillic * 3)


_WRONGLY_DECODED = _compile()


def find_mojibake(text: bytes) -> str | None:
    """Describe the first wrongly decoded sequence in UTF-8 `text`. Return None if there is none."""
    if text.isascii():
        return None
    if (index := text.find(_REPLACEMENT)) >= 0:
        return f"has a replacement character (U+FFFD) at byte {index:,}"
    for pattern in _WRONGLY_DECODED:
        if found := pattern.search(text):
            shown = text[found.start() : found.start() + _EXCERPT_BYTES].decode("utf-8", "ignore")
            return f"has text that was decoded wrongly at byte {found.start():,}: {shown!r}"
    return None
