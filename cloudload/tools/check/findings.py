"""The findings of a check, their collection in bounded memory, and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from cloudload.system import reports
from cloudload.tools.check.rules import ERROR, RULES, SEVERITIES

MOST_LISTED = 20
"""Maximum number of findings of each kind in a report. Further findings are only counted."""

_MOST_SHOWN = 1000


@dataclass(frozen=True)
class Finding:
    """A problem in a dataset."""

    kind: str
    """The kind of problem: a key of `rules.RULES`, such as `hash-mismatch`."""
    severity: str
    """`error`, `warning` or `note`."""
    readers: tuple[str, ...]
    """The affected readers: `cloudload`, `Streaming`, both, or neither."""
    where: str
    """The shard or object, or empty for the whole dataset."""
    what: str
    """A description of the problem, with the values."""
    advice: str
    """What to do about the problem."""


def find(
    kind: str, where: str, what: str, *, readers: tuple[str, ...] | None = None, advice: str = ""
) -> Finding:
    """Create a finding of a kind in `RULES`. `readers` and `advice` override the rule's values.

    Control characters from the dataset are escaped.
    """
    rule = RULES[kind]
    return Finding(
        kind,
        rule.severity,
        rule.readers if readers is None else readers,
        _escape(where),
        _escape(what[:_MOST_SHOWN]),
        advice or rule.advice,
    )


def _escape(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode()


@dataclass
class Findings:
    """Collects findings in bounded memory: it keeps the first 20 of each kind."""

    _kept: dict[str, list[Finding]] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    documents: int = 0
    """Number of documents that were tested."""

    def add(self, findings: Iterable[Finding]) -> None:
        """Add findings in order."""
        for finding in findings:
            self._counts[finding.kind] += 1
            kept = self._kept.setdefault(finding.kind, [])
            if len(kept) < MOST_LISTED:
                kept.append(finding)

    def add_unlisted(self, kind: str, number: int = 1) -> None:
        """Count further findings of a kind without listing them."""
        if number:
            self._counts[kind] += number

    def count(self, kind: str) -> int:
        """Return the number of findings of a kind."""
        return self._counts[kind]

    def merge(self, later: Findings) -> None:
        """Add the findings of a collector that read later shards."""
        for kind, found in later._kept.items():
            kept = self._kept.setdefault(kind, [])
            kept += found[: MOST_LISTED - len(kept)]
        self._counts.update(later._counts)
        self.documents += later.documents

    def sorted(self) -> tuple[Finding, ...]:
        """Return the findings that were kept: errors first, grouped by kind, in the order found."""
        found = [finding for kept in self._kept.values() for finding in kept]
        return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))

    def counts(self) -> dict[str, int]:
        """Return the number of findings of each kind."""
        return dict(self._counts)


@dataclass(frozen=True)
class CheckReport:
    """The result of a check."""

    dataset: str
    """The dataset's location, without secrets."""
    findings: tuple[Finding, ...]
    """The first 20 findings of each kind, errors first."""
    counts: dict[str, int]
    """The number of findings of each kind, including findings that are not listed."""
    shards: int
    """Number of shards in the index."""
    shards_read: int
    """Number of shards whose bytes were checked."""
    samples: int
    """Number of samples in the index."""
    raw_bytes: int
    """Bytes of the shards before compression, according to the index."""
    stored_bytes: int
    """Bytes of the shards as stored, according to the index."""
    seconds: float
    """Duration of the check in seconds."""
    documents: int = 0
    """Number of documents that the rules tested."""
    lengths: int = 0
    """Number of tokenizers for which the dataset has complete token lengths."""
    above_limits: tuple[str, ...] = ()
    """The rules that are broken by more documents than `fail_on` allows."""

    @property
    def is_sound(self) -> bool:
        """Whether there is no error and no rule is above its limit in `fail_on`."""
        has_error = any(RULES[kind].severity == ERROR for kind in self.counts)
        return not has_error and not self.above_limits

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and `is_sound` by name."""
        return {**asdict(self), "is_sound": self.is_sound}

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return reports.to_json(self.as_dict())
