"""Check shards, and test and hash their documents, in groups that any engine can run.

    shards ─ group_shards ─► groups ─ check_group, anywhere ─┬► findings, in order ─► report
                                                             └► hashes ─► duplicates

    shard ─► text of each document, or its conversation ─► tests ─► findings, with examples
                          │                    └─► the document of a run ─► tests ─┘
                          └─► hash ─┐
             ID of each document ─► hash ─► hashes by rule ─► duplicates

The findings of a shard depend only on the dataset, so the report is the same for any groups,
engine, and order of completion.

Repeated documents are found by exact hashes of their bytes, in bounded memory:

    hashes of each group ─► parts by hash, in temporary files ─► each part: sort, compare neighbors

A record has 24 bytes: a 128-bit hash, and the document's shard and sample. Parts are read one at a
time. For up to 1.4 * 10^9 documents, only the temporary files grow with the dataset, not memory.
With 10^9 documents, the probability that two different documents have the same hash is below
10^-20.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from cloudload.config import Chat
from cloudload.data import ID_KEY, Location, Shard, shard_entries
from cloudload.errors import DatasetError
from cloudload.rows import conversation
from cloudload.run import Recipe
from cloudload.system import map_in_order, temp_files
from cloudload.tools.check import chat_rules, document_rules
from cloudload.tools.check.findings import MOST_LISTED, Findings, find
from cloudload.tools.check.shard_contents import check_shard, name_sample
from cloudload.tools.engines.units import choose_engine, in_order, run_units
from cloudload.tools.inspect.trained_documents import TrainedReader

Records = NDArray[np.uint64]
"""uint64 [documents, 3]: the halves of the hash, then shard · 2^32 + sample."""

_NOUNS = {document_rules.REPEATED_TEXT: "text", document_rules.REPEATED_ID: "ID"}
_COLUMNS = 3
_RECORD_BYTES = 8 * _COLUMNS
PART_BYTES = 128 << 20
_MOST_PARTS = 256  # limited because each part of each rule is an open file
MEMORY_BYTES = 1 << 18  # maximum size of a part in memory; a larger part moves to a file

GROUP_BYTES = 512 << 20  # a process needs 1 to 2 s to check this much, and about as long to start
_THREADS_ALONE, _THREADS = 8, 4

_TEXT_ENCODINGS, _CHAT_ENCODINGS = ("str", "bytes"), ("json", "str")
_CHAT_SEPARATOR = b"\x00"
_NO_ID = (b"",)
_NO_JSON_ID = (b"null", b'""')


@dataclass(frozen=True)
class CheckWork:
    """The data that all groups share. It is sent to every worker."""

    location: Location
    """The dataset's folder."""
    text_key: str | None
    """The column of texts; None if the documents have no text."""
    chat: Chat | None
    """How conversations are read; None if the documents are token IDs."""
    rules: document_rules.DocumentRules
    recipe: Recipe | None = None
    """What a run makes of the conversations, for rules that need the chat template."""
    threads: int = _THREADS
    """Number of threads that read shards."""


class CheckedGroup(NamedTuple):
    """The findings of a group, and the hashes of each of its shards."""

    findings: Findings
    hashes: list[Mapping[str, bytes]]


def check_shards(
    work: CheckWork,
    shards: Sequence[shard_entries.ShardInfo],
    duplicates: DuplicateFinder,
    *,
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
    if executor is None and groups and min(processes, len(groups)) <= 1:
        groups, work = [tuple(shards)], replace(work, threads=_THREADS_ALONE)
    if work.location.is_local:  # other processes may have another working directory
        work = replace(work, location=work.location.at(os.path.abspath(work.location.url)))
    firsts = list(accumulate(map(len, groups), initial=0))
    with choose_engine(executor, min(processes, len(groups))) as engine:
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
    documents = DocumentCheck(work.rules, work.text_key, work.chat, work.recipe)
    check = partial(_check_shard, work, documents)
    results = map_in_order(check, shards, work.threads, "cloudload-check")
    for info, (found, own_hashes) in zip(shards, results, strict=True):
        findings.merge(found)
        hashes.append(own_hashes)
        on_bytes(info.stored.bytes)
    return CheckedGroup(findings, hashes)


def _check_shard(
    work: CheckWork, documents: DocumentCheck, info: shard_entries.ShardInfo
) -> tuple[Findings, Mapping[str, bytes]]:
    """Check the bytes of a shard, and then its documents. Also returns their hashes by rule."""
    findings, hashes = Findings(), dict[str, bytes]()

    def look(shard: Shard) -> None:
        found, own = documents.look(shard)
        findings.merge(found)
        hashes.update(own)

    of_bytes = Findings()
    of_bytes.add(check_shard(work.location, info, work.text_key, look))
    of_bytes.merge(findings)
    return of_bytes, hashes


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

    def __init__(
        self,
        rules: document_rules.DocumentRules,
        text_key: str | None,
        chat: Chat | None,
        recipe: Recipe | None,
    ) -> None:
        self._rules, self._text_key, self._chat = rules, text_key, chat
        self._reader = None if recipe is None else TrainedReader(recipe)
        self._chat_tests = chat_rules.list_chat_tests(rules)
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
        if self._rules.names and (texts := self._choose_texts(shard, encodings, findings)):
            findings.documents += shard.info.samples
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

    def _choose_texts(
        self, shard: Shard, encodings: Mapping[str, str], findings: Findings
    ) -> Iterator[tuple[int, bytes]] | None:
        """Return an iterator that tests texts or conversations, or None if there are none."""
        key = self._text_key
        if key is not None and encodings.get(key) in _TEXT_ENCODINGS:
            return self._test(shard, key, findings)
        names = [name for name, encoding in encodings.items() if encoding in _CHAT_ENCODINGS]
        if self._chat is not None and (columns := conversation.find_columns(names, self._chat)):
            return self._test_chats(shard, columns, self._chat, findings)
        return None

    def _test_chats(
        self, shard: Shard, columns: Sequence[str], chat: Chat, findings: Findings
    ) -> Iterator[tuple[int, bytes]]:
        """Test each conversation, and yield the index and the stored bytes of those with messages.

        A value that is not JSON is another finding.
        """
        broken: dict[int, Collection[str]] = {}
        stored = zip(*(_read_values(shard, column) for column in columns), strict=True)
        for sample, parts in enumerate(stored):
            try:
                values = shard.read_columns(sample, columns)
            except DatasetError:
                continue
            faults = dict(chat_rules.find_faults(values, chat, self._chat_tests))
            for kind, what in faults.items():
                if kind in self._rules.names:
                    _note(findings, kind, shard, sample, what)
            broken[sample] = faults.keys()
            if document_rules.NO_MESSAGES not in faults:
                yield sample, _CHAT_SEPARATOR.join(parts)
        # a run reads all columns, and a value that cannot be read is another finding
        with contextlib.suppress(DatasetError):
            self._test_documents(shard, broken, findings)

    def _test_documents(
        self, shard: Shard, broken: Mapping[int, Collection[str]], findings: Findings
    ) -> None:
        """Test what a run makes of conversations, given the rules that each breaks already."""
        if self._reader is None:
            return
        for sample, kind, what in chat_rules.find_faults_of_documents(self._reader, shard, broken):
            if kind in self._rules.names:
                _note(findings, kind, shard, sample, what)

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


# ---------------------------------------------------------------- duplicates


class Repeat(NamedTuple):
    """A document that repeats an earlier one. Shard indices count only shards that are read."""

    shard: int
    sample: int
    first_shard: int
    first_sample: int


class DuplicateFinder:
    """Collects the hashes of documents by rule, and finds equal hashes."""

    def __init__(self, rules: Sequence[str], num_samples: int) -> None:
        needed = -(-num_samples * _RECORD_BYTES // PART_BYTES)
        self._num_parts = max(1, min(needed, _MOST_PARTS))
        self._parts = {
            name: [tempfile.SpooledTemporaryFile(MEMORY_BYTES) for _ in range(self._num_parts)]
            for name in rules
        }

    @property
    def rules(self) -> Collection[str]:
        """The rules for which hashes are collected."""
        return self._parts.keys()

    def add(self, shard: int, hashes: Mapping[str, bytes]) -> None:
        """Add a shard's records. `hashes` maps each rule to the result of `encode_records`."""
        for name, data in hashes.items():
            moved = _decode(data).copy()
            moved[:, 2] += np.uint64(shard << 32)
            owners = moved[:, 0] % np.uint64(self._num_parts)
            order = np.argsort(owners, kind="stable")
            ends = np.searchsorted(owners[order], np.arange(self._num_parts - 1), side="right")
            with temp_files.explained_full_disk():
                for part, own in zip(self._parts[name], np.split(moved[order], ends), strict=True):
                    part.write(own.tobytes())

    def find(self, name: str, most: int) -> tuple[int, list[Repeat]]:
        """Return the number of repeated documents, and the first `most` of them as `Repeat`s."""
        count, first = 0, list[Repeat]()
        for part in self._parts[name]:
            part.seek(0)
            repeats, firsts = _find_repeats(_decode(part.read()))
            count += len(repeats)
            chosen = np.argsort(repeats)[:most]
            found = map(_describe, repeats[chosen].tolist(), firsts[chosen].tolist())
            first = heapq.nsmallest(most, [*first, *found])
        return count, first

    def close(self) -> None:
        """Remove the temporary files."""
        for parts in self._parts.values():
            for part in parts:
                part.close()


def encode_records(values: Iterable[tuple[int, bytes]]) -> bytes:
    """Hash a shard's (sample, value) pairs. The shard index is 0 until `add` sets it."""
    digests = [(xxhash.xxh3_128_digest(value), sample) for sample, value in values]
    records = np.empty((len(digests), _COLUMNS), "<u8")
    joined = b"".join(digest for digest, _ in digests)
    records[:, :2] = np.frombuffer(joined, "<u8").reshape(-1, 2)
    records[:, 2] = [sample for _, sample in digests]
    return records.tobytes()


def _decode(data: bytes) -> Records:
    return np.frombuffer(data, "<u8").reshape(-1, _COLUMNS)


def _describe(index: int, first: int) -> Repeat:
    return Repeat(index >> 32, index & 0xFFFFFFFF, first >> 32, first & 0xFFFFFFFF)


def _find_repeats(records: Records) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the locations of repeated documents and of their first copies: uint64 [repeats] each.

    A location is shard · 2^32 + sample. For example, if the hashes at 5 6 7 8 are A B A A, the
    result is 7 8 (the repeated documents) and 5 5 (their first copies).
    """
    if not len(records):
        return records[:, 2], records[:, 2]
    order = np.argsort(records[:, 0])
    halves = records[order, 0]
    is_equal = halves[1:] == halves[:-1]
    is_near = np.append(is_equal, False) | np.append(False, is_equal)
    near = records[order[is_near]]  # usually few records, so sorting is cheap
    near = near[np.lexsort((near[:, 2], near[:, 1], near[:, 0]))]
    is_repeat = (near[1:, :2] == near[:-1, :2]).all(axis=1)
    starts = np.flatnonzero(np.append(True, ~is_repeat))[: len(near)]
    lengths = np.diff(np.append(starts, len(near)))
    firsts = np.repeat(near[starts, 2], lengths)
    return near[1:, 2][is_repeat], firsts[1:][is_repeat]


def add_repeats(
    duplicates: DuplicateFinder,
    findings: Findings,
    name_samples: Callable[[int, Sequence[int]], tuple[str, list[str]]],
) -> None:
    """Add findings for the documents that repeat an earlier one.

    `name_samples` takes a shard's index and samples, and returns the shard's name and the
    samples' descriptions.
    """
    for kind, noun in _NOUNS.items():
        if kind not in duplicates.rules:
            continue
        count, repeats = duplicates.find(kind, MOST_LISTED)
        by_shard: dict[int, set[int]] = {}
        for shard, sample in [index for each in repeats for index in (each[:2], each[2:])]:
            by_shard.setdefault(shard, set()).add(sample)
        named = {}
        for shard, samples in by_shard.items():
            name, described = name_samples(shard, sorted(samples))
            named[shard] = name, dict(zip(sorted(samples), described, strict=True))
        for each in repeats:
            (name, texts), (first_name, first) = named[each.shard], named[each.first_shard]
            what = f"{texts[each.sample]} has the same {noun} as {first[each.first_sample]}"
            findings.add([find(kind, name, f"{what} of {first_name}")])
        findings.add_unlisted(kind, count - len(repeats))
