"""Check shards, and test and hash their documents, in groups that any engine can run.

    shards ─ group_shards ─► groups ─ check_group, anywhere ─┬► findings, in order ─► report
                                                             └► hashes ─► duplicates

    shard ─► text of each document ─► tests ─► findings, with examples
                          └─► hash ─┐
             ID of each document ─► hash ─► hashes by rule ─► duplicates

The findings of a shard depend only on the dataset, so the report is the same for any groups,
engine, and order of completion.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from cloudload.data import ID_KEY, Location, Shard, shard_entries
from cloudload.system import DaemonThreadPool, run_in_order
from cloudload.tools.check import document_rules
from cloudload.tools.check.duplicates import DuplicateFinder, encode_records
from cloudload.tools.check.findings import MOST_LISTED, Findings, find
from cloudload.tools.check.shard_contents import check_shard, name_sample
from cloudload.tools.engines.local_processes import open_processes
from cloudload.tools.engines.units import in_order, run_units

GROUP_BYTES = 512 << 20  # a process needs 1 to 2 s to check this much, and about as long to start
_THREADS_ALONE, _THREADS = 8, 4

_TEXT_ENCODINGS = ("str", "bytes")
_NO_ID = (b"",)
_NO_JSON_ID = (b"null", b'""')


@dataclass(frozen=True)
class CheckWork:
    """The data that all groups share. It is sent to every worker."""

    location: Location
    """The dataset's folder."""
    text_key: str | None
    """The column of texts; None if the documents are token IDs."""
    threads: int
    """Number of threads that read shards."""
    rules: document_rules.DocumentRules


class ShardResult(NamedTuple):
    """The findings of a shard, and the hashes of its documents by rule."""

    findings: Findings
    hashes: Mapping[str, bytes]


class CheckedGroup(NamedTuple):
    """The findings of a group, and the hashes of each of its shards."""

    findings: Findings
    hashes: list[Mapping[str, bytes]]


def check_shards(
    location: Location,
    text_key: str | None,
    shards: Sequence[shard_entries.ShardInfo],
    *,
    rules: document_rules.DocumentRules,
    duplicates: DuplicateFinder,
    processes: int,
    executor: Executor | None,
    on_bytes: Callable[[int], object],
) -> Iterator[Findings]:
    """Yield the findings of groups of shards, in the order of the shards.

    `duplicates` receives the documents' hashes, by the index of the shard in `shards`. The
    groups run on the executor if there is one, otherwise on `processes` processes. `on_bytes`
    receives the number of stored bytes read. Raises `WorkerError` if a process or the executor
    fails.
    """
    groups = group_shards(shards, GROUP_BYTES)
    is_alone = executor is None and min(processes, len(groups)) <= 1
    if is_alone and groups:
        groups = [tuple(shards)]
    if location.is_local:  # other processes may use another cwd
        location = location.at(os.path.abspath(location.url))
    work = CheckWork(location, text_key, _THREADS_ALONE if is_alone else _THREADS, rules)
    firsts = list(accumulate(map(len, groups), initial=0))
    with (
        nullcontext(executor) if executor else open_processes(min(processes, len(groups)))
    ) as engine:
        check = partial(check_group, work)
        results = run_units(check, groups, engine, on_bytes=on_bytes)
        yield from in_order(_take_hashes(results, firsts, duplicates))


def _take_hashes(
    results: Iterable[tuple[int, CheckedGroup]], firsts: Sequence[int], duplicates: DuplicateFinder
) -> Iterator[tuple[int, Findings]]:
    """Yield each group's findings, and add its hashes to `duplicates`, as results arrive."""
    for index, result in results:
        for shard, hashes in enumerate(result.hashes, firsts[index]):
            duplicates.add(shard, hashes)
        yield index, result.findings


def check_group(
    work: CheckWork, shards: Sequence[shard_entries.ShardInfo], on_bytes: Callable[[int], object]
) -> CheckedGroup:
    """Check shards in threads. `on_bytes` receives the number of stored bytes read."""
    findings, hashes = Findings(), list[Mapping[str, bytes]]()
    documents = DocumentCheck(work.rules, work.text_key)
    check = partial(_check_shard, work, documents)
    threads = DaemonThreadPool(work.threads, "cloudload-check")
    try:
        for info, result in run_in_order(partial(threads.submit, check), shards, 2 * work.threads):
            findings.merge(result.findings)
            hashes.append(result.hashes)
            on_bytes(info.stored.bytes)
    finally:
        threads.close(timeout_s=1.0)
    return CheckedGroup(findings, hashes)


def _check_shard(
    work: CheckWork, documents: DocumentCheck, info: shard_entries.ShardInfo
) -> ShardResult:
    """Check the bytes of a shard, and then its documents."""
    looked: list[tuple[Findings, Mapping[str, bytes]]] = []
    found = Findings()
    found.add(
        check_shard(
            work.location,
            info,
            work.text_key,
            lambda shard: looked.append(documents.look(shard)),
        )
    )
    for findings, _ in looked:
        found.merge(findings)
    return ShardResult(found, looked[0][1] if looked else {})


def group_shards(
    shards: Sequence[shard_entries.ShardInfo], group_bytes: int
) -> list[tuple[shard_entries.ShardInfo, ...]]:
    """Divide shards into groups of consecutive shards.

    Each group but the last has at least `group_bytes` raw bytes.
    """
    groups: list[tuple[shard_entries.ShardInfo, ...]] = []
    group: list[shard_entries.ShardInfo] = []
    filled = 0
    for shard in shards:
        group.append(shard)
        filled += shard.raw.bytes
        if filled >= group_bytes:
            groups.append(tuple(group))
            group, filled = [], 0
    return [*groups, tuple(group)] if group else groups


class DocumentCheck:
    """Tests and hashes the documents of shards."""

    def __init__(self, rules: document_rules.DocumentRules, text_key: str | None) -> None:
        self._rules, self._text_key = rules, text_key
        tests = dict(document_rules.list_tests(rules))
        self._empty, self._tests = tests.pop(document_rules.EMPTY_TEXT, None), list(tests.items())

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
            if document_rules.REPEATED_TEXT in hashes:
                hashes[document_rules.REPEATED_TEXT] = encode_records(texts)
            else:
                for _ in texts:
                    pass
        if document_rules.REPEATED_ID in hashes and ID_KEY in encodings:
            values = enumerate(_read_values(shard, ID_KEY))
            none = _NO_JSON_ID if encodings[ID_KEY] == "json" else _NO_ID
            hashes[document_rules.REPEATED_ID] = encode_records(
                each for each in values if each[1] not in none
            )
        return findings, hashes

    def _test(self, shard: Shard, key: str, findings: Findings) -> Iterator[tuple[int, bytes]]:
        """Test each text, and yield the index and the bytes of each text that is not blank."""
        for sample, text in enumerate(_read_values(shard, key)):
            if document_rules.is_blank(text):
                if self._empty is not None:
                    _note(findings, document_rules.EMPTY_TEXT, shard, sample, self._empty(text))
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
