"""Test the documents of shards, and hash them to find repeated ones.

shard ─► text of each document ─► tests ─► findings, with examples
                      └─► hash ─┐
         ID of each document ─► hash ─► hashes by rule ─► duplicates
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cloudload.data.mds.shard import ID_KEY, Shard
from cloudload.tools.check.document_rules import (
    EMPTY_TEXT,
    REPEATED_ID,
    REPEATED_TEXT,
    DocumentRules,
    is_blank,
    list_tests,
)
from cloudload.tools.check.duplicates import encode_records
from cloudload.tools.check.findings import MOST_LISTED, Findings, find
from cloudload.tools.check.shards import name_sample

_TEXT_ENCODINGS = ("str", "bytes")
_NO_ID = (b"",)
_NO_JSON_ID = (b"null", b'""')


class DocumentCheck:
    """Tests and hashes the documents of shards."""

    def __init__(self, rules: DocumentRules, text_key: str | None) -> None:
        self._rules, self._text_key = rules, text_key
        tests = dict(list_tests(rules))
        self._empty, self._tests = tests.pop(EMPTY_TEXT, None), list(tests.items())

    def look(self, shard: Shard) -> tuple[Findings, dict[str, bytes]]:
        """Return the findings about a shard's documents, and the documents' hashes by rule.

        The hashes are encoded as records. The shard's samples must be intact. Blank texts and empty
        IDs are not hashed.
        """
        findings = Findings()
        hashes = dict.fromkeys(self._rules.hashed, b"")
        encodings = {column.name: column.encoding for column in shard.info.columns}
        key = self._text_key
        if self._rules.names and key is not None and encodings.get(key) in _TEXT_ENCODINGS:
            findings.documents += shard.info.samples
            texts = self._test(shard, key, findings)
            if REPEATED_TEXT in hashes:
                hashes[REPEATED_TEXT] = encode_records(texts)
            else:
                for _ in texts:
                    pass
        if REPEATED_ID in hashes and ID_KEY in encodings:
            values = enumerate(_read_values(shard, ID_KEY))
            none = _NO_JSON_ID if encodings[ID_KEY] == "json" else _NO_ID
            hashes[REPEATED_ID] = encode_records(each for each in values if each[1] not in none)
        return findings, hashes

    def _test(self, shard: Shard, key: str, findings: Findings) -> Iterator[tuple[int, bytes]]:
        """Test each text, and yield the index and the bytes of each text that is not blank."""
        for sample, text in enumerate(_read_values(shard, key)):
            if is_blank(text):
                if self._empty is not None:
                    _note(findings, EMPTY_TEXT, shard, sample, self._empty(text))
                continue
            for kind, test in self._tests:
                if (what := test(text)) is not None:
                    _note(findings, kind, shard, sample, what)
            yield sample, text


def _note(findings: Findings, kind: str, shard: Shard, sample: int, what: str | None) -> None:
    """Add a finding, or only count it if 20 findings of its kind are already listed."""
    if findings.count(kind) >= MOST_LISTED:
        findings.add_unlisted(kind)
        return
    findings.add([find(kind, shard.info.raw.name, f"{name_sample(shard, sample)} {what}")])


def _read_values(shard: Shard, column: str) -> Iterator[bytes]:
    samples = np.arange(shard.info.samples)
    starts, stops = shard.find_values(samples, shard.column_index(column))
    data = shard.data
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        yield bytes(data[start:stop])
