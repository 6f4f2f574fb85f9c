"""Choose the rules for documents and their limits, and list the test of each rule.

    names, max_bytes, tokenizer ─► DocumentRules ─► list_tests ─► (kind, test of a text's bytes)

A test returns a description of what is wrong with a text, or None. It reads UTF-8 bytes rather than
`str`, because one fast scan is then enough.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cloudload.config import Chat, checks
from cloudload.tools.check.findings import Finding, find

if TYPE_CHECKING:
    from cloudload.rows import TokenizerSpec

EMPTY_TEXT, LONG_TEXT = "text-empty", "text-long"
SPECIAL_TEXT, FRAMED_TEXT = "text-special", "text-framed"
REPEATED_TEXT, REPEATED_ID = "text-repeated", "id-repeated"
NO_MESSAGES, NO_CHAT, NO_ANSWER = "chat-missing", "chat-invalid", "chat-unanswered"
ROLES, EMPTY_MESSAGE = "chat-roles", "chat-empty"
REFUSED_CHAT, UNTRAINED_CHAT, LONG_CHAT = "chat-refused", "chat-untrained", "chat-long"
TEXT_RULES = (EMPTY_TEXT, LONG_TEXT, SPECIAL_TEXT, FRAMED_TEXT, REPEATED_TEXT, REPEATED_ID)
CHAT_RULES = (NO_MESSAGES, NO_CHAT, NO_ANSWER, ROLES, EMPTY_MESSAGE)
TEMPLATE_RULES = (REFUSED_CHAT, UNTRAINED_CHAT, LONG_CHAT)
DOCUMENT_RULES = (*TEXT_RULES, *CHAT_RULES, *TEMPLATE_RULES)
"""The names of all rules, which are also kinds of findings."""
_NEEDS = {
    FRAMED_TEXT: "a tokenizer",
    **dict.fromkeys(TEMPLATE_RULES, "a tokenizer, and chat=Chat()"),
    LONG_CHAT: "a tokenizer, and chat=Chat(max_tokens=N)",
}
"""The arguments without which a rule does not apply."""
ALL, NONE = "all", "none"
NO_TOKEN = "none"

Test = Callable[[bytes], str | None]

_LIKE_SPECIAL = re.compile(rb"<\|[A-Za-z0-9_]{1,64}\|>")
_HEAD_BYTES = 64


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
    names: str | Collection[str],
    max_bytes: int | str,
    tokenizer: TokenizerSpec | None = None,
    chat: Chat | None = None,
) -> DocumentRules:
    """Choose rules by name, `all` or `none`. Raises `ValueError` for an unknown name or bad size.

    `all` omits rules that need a tokenizer, or also a `chat`, if there is none.
    """
    asked = [names] if isinstance(names, str) else list(names)
    if unknown := [each for each in asked if each not in (*DOCUMENT_RULES, ALL, NONE)]:
        raise ValueError(
            f"rules has the unknown rule {unknown[0]!r}. Use all, none, or any of "
            f"{', '.join(DOCUMENT_RULES)}"
        )
    idle = _list_idle(tokenizer, chat)
    if ALL in asked:
        asked = [each for each in DOCUMENT_RULES if each not in idle]
    if wrong := [each for each in asked if each in idle]:
        raise ValueError(
            f"the rule {wrong[0]} requires {_NEEDS[wrong[0]]}. Pass them, or omit the rule"
        )
    chosen = frozenset(asked) - {NONE}
    if tokenizer is None:
        return DocumentRules(chosen, checks.parse_bytes(max_bytes))
    bos, eos = _name_frame(tokenizer)
    added = json.loads(tokenizer.json).get("added_tokens", [])
    special = tuple(each["content"] for each in added if each.get("special"))
    return DocumentRules(chosen, checks.parse_bytes(max_bytes), special, bos, eos)


def _list_idle(tokenizer: TokenizerSpec | None, chat: Chat | None) -> set[str]:
    """Return the rules that no document could break, because an argument is missing."""
    if tokenizer is None:
        return {FRAMED_TEXT, *TEMPLATE_RULES}
    if chat is None:
        return {*TEMPLATE_RULES}
    has_limit = chat.max_tokens is not None and chat.overlong != "split"
    return set() if has_limit else {LONG_CHAT}


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
        LONG_TEXT: partial(_find_long, rules.max_bytes),
        SPECIAL_TEXT: partial(_find_special, _compile_names(rules.special_tokens)),
        FRAMED_TEXT: partial(_find_frame, rules.bos, rules.eos),
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


def _find_long(most: int, text: bytes) -> str | None:
    return f"has {len(text):,} bytes, more than {most:,}" if len(text) > most else None


def _compile_names(tokens: Iterable[str]) -> re.Pattern[bytes]:
    """Compile a pattern of the names of special tokens, or of anything like one without tokens."""
    longest_first = sorted((re.escape(each.encode()) for each in tokens), reverse=True)
    return re.compile(b"|".join(longest_first)) if longest_first else _LIKE_SPECIAL


def _find_special(names: re.Pattern[bytes], text: bytes) -> str | None:
    found = names.search(text)
    return found and f"has {found[0].decode('utf-8')} at byte {found.start():,}"


def _find_frame(bos: str, eos: str, text: bytes) -> str | None:
    if bos and text.startswith(bos.encode()):
        return f"begins with {bos}, which the loader also adds"
    if eos and text.rstrip().endswith(eos.encode()):
        return f"ends with {eos}, which the loader also adds"
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
        needed = f"Pass {_NEEDS[idle[0]]}" if idle[0] in _NEEDS else "Add it to rules"
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
