"""Find text that was decoded with the wrong encoding and then encoded again as UTF-8.

    é is c3 a9       read as Latin-1 or Windows-1252    Ã©     c3 83 c2 a9
    “ is e2 80 9c    read as Windows-1252               â€œ   c3 a2 e2 82 ac c5 93

The wrong encoding turns each UTF-8 lead byte into one of a few letters, and each continuation byte
into a symbol or an unusual letter. So mojibake contains one of those letters, followed by one such
character for each continuation byte. Correct text rarely contains such a sequence. Two kinds of
sequences are allowed because correct text contains them: punctuation after a capital letter, such
as `É»`, and characters that may end a word before punctuation, such as `íš“` or `é®”`.
"""

from __future__ import annotations

import re

_PUNCTUATION = "\xa0«»“”…\u2018\u2019\u2013\u2014"  # quotation marks and dashes
_BETWEEN = _PUNCTUATION + "¿¡\u2039\u203a\xad"  # may occur between words or between letters
_ENDING = "šžŠŽœŒŸ™®©°ªº¹²³"  # may occur at the end of a word
_EXCERPT_BYTES = 24


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
_REPLACEMENT = "\ufffd".encode()


def find_mojibake(text: bytes) -> str | None:
    """Describe the first wrongly decoded sequence in UTF-8 `text`. Return None if there is none."""
    if text.isascii():
        return None
    if (place := text.find(_REPLACEMENT)) >= 0:
        return f"has a replacement character (U+FFFD) at byte {place:,}"
    for pattern in _WRONGLY_DECODED:
        if found := pattern.search(text):
            shown = text[found.start() : found.start() + _EXCERPT_BYTES].decode("utf-8", "ignore")
            return f"has text that was decoded wrongly at byte {found.start():,}: {shown!r}"
    return None
