"""Write the token lengths that a run learns while it reads, to the same files as `count_tokens`.

    lengths of a node ─┬─► complete groups ──────────────────────► 00000-….lengths
                       └─► other groups, with several nodes ──► 00000-….lengths.<node>.<known>.part
                            parts of all nodes, once complete ► 00000-….lengths
    all groups exist ─► index-….json, and the parts are deleted

One process per node publishes lengths: every two minutes, at the end of the data, and when its
loader is closed. A group is written only when it is complete. Several nodes may write the same
group, or the index, at once, because they write the same bytes.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import platform
import queue
import re
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cloudload.arrays import Ints, Words
from cloudload.count.finish import finish_count
from cloudload.count.group import CountWork, GroupJob, list_found, list_groups, write_group
from cloudload.errors import CacheError, StoreError
from cloudload.lengths.files import place_of
from cloudload.lengths.index import index_name
from cloudload.lengths.key import make_key
from cloudload.lengths.learned import (
    LearnedDataset,
    LearnedLengths,
    decode_facts,
    find_node,
    open_learned,
)
from cloudload.mds.dataset import Corpus, Dataset
from cloudload.run.recipe import Recipe
from cloudload.storage.base import Retry
from cloudload.storage.objects import delete_object, read_object, write_object
from cloudload.storage.redaction import redact

logger = logging.getLogger(__name__)
_EVERY_S, _MOST_WAIT_S = 120.0, 60.0
_PART = re.compile(r"(?P<group>.+\.lengths)\.(?P<node>[0-9a-f]{12})\.(?P<known>[0-9]{1,18})\.part")
_HASH_BYTES = 32


class LengthsLearner:
    """Publishes the learned lengths of a run, for the processes of its node.

    Only one process of a node is a publisher. In all other processes, publishing does nothing.
    """

    def __init__(self, works: Sequence[_Learning], *, is_publisher: bool) -> None:
        self._works, self._is_publisher = works, is_publisher
        self.learned = LearnedLengths(tuple(each.learned for each in works))
        self._requests: _Requests = queue.SimpleQueue()
        self._end: Callable[[], object] | None = None

    def start(self) -> None:
        """Publish every two minutes, in a thread that stops when this object is deleted."""
        if not self._is_publisher:
            return
        arguments = weakref.ref(self), self._requests
        thread = threading.Thread(target=_keep_publishing, args=arguments, daemon=True)
        thread.start()
        end = weakref.finalize(self, _end_thread, thread, self._requests)
        # at exit, serve open requests. `atexit` would be too late, because it runs after thread
        # pools are shut down
        end.atexit = False
        getattr(threading, "_register_atexit", atexit.register)(end)
        self._end = end

    def publish_soon(self) -> None:
        """Let the thread publish soon. Does not wait, because other ranks may wait for this one."""
        if self._end is not None:
            self._requests.put(self)

    def publish(self) -> None:
        """Write the groups that are now complete. After the last group, also write the index.

        If this fails for any reason, logs a warning and stops publishing, because a run must not
        fail because of lengths.
        """
        try:
            for each in self._works if self._is_publisher else ():
                each.publish()
        except Exception as error:
            self._is_publisher = False
            if "interpreter shutdown" in str(
                error
            ):  # Python 3.12.0 to 3.12.2 cannot start threads then
                logger.warning(
                    "cannot write the token lengths that this run learned, because Python %s "
                    "cannot start threads while it exits. The next run writes them. To write "
                    "them in each run, close the loader before the process exits, or use Python "
                    "3.12.3 or later",
                    platform.python_version(),
                )
                return
            logger.warning(
                "cannot write the token lengths that this run learns: %s. The run continues. "
                "To get the token lengths, run cloudload count --out URL",
                error,
            )

    def close(self) -> None:
        """Publish one last time, and wait up to a minute for it to finish."""
        if self._end is not None:
            self.publish_soon()
            self._end()
            self._end = None


_Requests = queue.SimpleQueue[LengthsLearner | None]
"""The learners whose lengths the thread should publish. None stops the thread."""


def _keep_publishing(learner: weakref.ref[LengthsLearner], requests: _Requests) -> None:
    while True:
        try:
            found = requests.get(timeout=_EVERY_S)
        except queue.Empty:
            found = learner()
        if found is None:
            return
        found.publish()
        del found  # otherwise, this thread would keep the learner alive


def _end_thread(thread: threading.Thread, requests: _Requests) -> None:
    """Stop a thread after it has served its requests, and wait for at most a minute."""
    requests.put(None)
    if thread is threading.current_thread():
        return
    thread.join(_MOST_WAIT_S)
    if thread.is_alive():
        logger.warning(
            "the token lengths that this run learned were not written within %g s, so the run does "
            "not wait any longer. If the process exits before they are written, the next run "
            "writes them",
            _MOST_WAIT_S,
        )


def open_learner(
    recipe: Recipe, root: Path, retry: Retry, *, has_other_nodes: bool, is_publisher: bool
) -> LengthsLearner | None:
    """Open the lengths that a recipe's run learns. `root` is the cache folder.

    Logs a warning and returns None if the lengths cannot be stored, such as on a full disk.
    """
    try:
        works = _open_works(recipe, root, retry, has_other_nodes=has_other_nodes)
    except CacheError as error:
        logger.warning("%s. The run continues without learning token lengths", error)
        return None
    return LengthsLearner(works, is_publisher=is_publisher)


def _open_works(
    recipe: Recipe, root: Path, retry: Retry, *, has_other_nodes: bool
) -> list[_Learning]:
    small = replace(recipe, corpus=Corpus(()), components=())
    works = []
    for stream, dataset in enumerate(recipe.corpus.datasets):
        key = make_key(recipe, stream)
        learned = open_learned(root, key, recipe.corpus, stream)
        work = CountWork(small, "", key, place_of(dataset, None), retry)
        node = find_node(root) if has_other_nodes else None
        works.append(_Learning(work, dataset, learned, node))
    return works


def forget_learned(recipe: Recipe, root: Path) -> None:
    """Delete the learned lengths of a recipe's data from the cache folder `root`.

    Call this only if the data has published lengths.
    """
    for stream in range(len(recipe.corpus.datasets)):
        key = make_key(recipe, stream)
        path = open_learned(root, key, recipe.corpus, stream, creates=False).path
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


class _Part(NamedTuple):
    """The lengths that one node has learned in a group that it has not read completely."""

    name: str
    node: str
    known: int
    """Number of samples whose lengths the node knows."""


class _Learning:
    """The learned lengths of one dataset. `node` is None if there is only one node."""

    def __init__(
        self, work: CountWork, dataset: Dataset, learned: LearnedDataset, node: str | None
    ) -> None:
        self._work, self._dataset, self.learned, self._node = work, dataset, learned, node
        self._jobs = list_groups(work, dataset)
        numbers = [job.shards.samples for job in self._jobs]
        self._bounds = np.cumsum([0, *numbers])
        self._published = np.zeros(len(numbers), np.int64)
        """Number of samples known when each group was last published: int64 [groups]."""
        self._is_over = False

    @cached_property
    def _index_name(self) -> str:
        return index_name(Corpus((self._dataset,)).fingerprint(range(1)))

    def publish(self) -> None:
        """Write newly learned lengths. Raises `StoreError`, and `DatasetError` for damaged files.

        Sends no request if there is nothing to write. A single node writes only complete groups.
        """
        known = np.zeros_like(self._published) if self._is_over else self._count_known()
        is_new = known > self._published
        if self._node is None:
            is_new &= known == np.diff(self._bounds)
        if not is_new.any():
            return
        found = list_found(self._work)
        if self._index_name not in found:
            new = np.flatnonzero(is_new).tolist()
            self._write_new(new, found)
            # list after writing: if several nodes write at once, the last one then sees all files
            found = list_found(self._work)
            if self._join_parts(new, found):
                found = list_found(self._work)
            self._published = np.where(is_new, known, self._published)
            if any(job.shards.name not in found for job in self._jobs):
                return
            counted = finish_count(self._work, self._dataset, self._jobs)
            logger.info(
                "learned the token lengths of all documents, and stored them in %s",
                redact(counted.url),
            )
        self._is_over = True
        self.learned.path.unlink(missing_ok=True)
        for name in found:
            if _PART.fullmatch(name):
                self._delete(name)

    def _write_new(self, numbers: Sequence[int], found: set[str]) -> None:
        """Write the groups with these indices, except those in `found`.

        If a group is incomplete, writes this node's part of it, and deletes the node's older parts.
        """
        for number in numbers:
            job, facts = self._jobs[number], self._facts(number).copy()
            if job.shards.name in found:
                continue
            if facts.all():
                self._write_group(job, facts)
            elif self._node is not None:
                self._write_part(job, facts, self._node, found)

    def _join_parts(self, numbers: Sequence[int], found: set[str]) -> bool:
        """Write each group whose lengths all nodes together know. Returns whether it wrote any."""
        has_written = False
        for number in numbers if self._node is not None else ():
            job, facts = self._jobs[number], self._facts(number).copy()
            others = [part for part in _list_parts(job, found) if part.node != self._node]
            known = int(np.count_nonzero(facts)) + sum(part.known for part in others)
            if job.shards.name in found or known < len(facts):
                continue
            for part in others:
                facts = np.maximum(facts, self._read_part(part, len(facts)))
            if facts.all():
                self._write_group(job, facts)
                has_written = True
        return has_written

    def _write_group(self, job: GroupJob, facts: Words) -> None:
        lengths, text_bytes = decode_facts(facts)
        write_group(self._work, job.shards, lengths, text_bytes)

    def _facts(self, number: int) -> Words:
        return self.learned.facts[self._bounds[number] : self._bounds[number + 1]]

    def _count_known(self) -> Ints:
        known = [np.count_nonzero(self._facts(number)) for number in range(len(self._jobs))]
        return np.array(known, np.int64)

    def _write_part(self, job: GroupJob, facts: Words, node: str, found: set[str]) -> None:
        """Write this node's part of a group, and delete its older parts of the same group."""
        name = f"{job.shards.name}.{node}.{np.count_nonzero(facts)}.part"
        data = zlib.compress(facts.astype("<u8").tobytes(), 1)
        if name not in found:
            data = hashlib.sha256(data).digest() + data
            write_object(self._url_of(name), data, self._work.retry)
        for older in _list_parts(job, found):
            if older.node == node and older.name != name:
                self._delete(older.name)

    def _read_part(self, part: _Part, samples: int) -> Words:
        """Return the values of a part: uint64 [samples]; zeros if it is missing or damaged."""
        most = 8 * samples + samples // 100 + 1_000  # zlib may expand data slightly
        try:
            found = read_object(self._url_of(part.name), self._work.retry, most)
        except StoreError as error:
            if not error.is_missing:
                raise
            return np.zeros(samples, np.uint64)
        data = found[_HASH_BYTES:]
        raw = b""
        if hashlib.sha256(data).digest() == found[:_HASH_BYTES]:
            with contextlib.suppress(zlib.error):
                raw = zlib.decompressobj().decompress(data, 8 * samples + 1)
        if len(raw) != 8 * samples:
            logger.info("%s is damaged, so it is not used", redact(self._url_of(part.name)))
            return np.zeros(samples, np.uint64)
        return np.frombuffer(raw, "<u8").astype(np.uint64)

    def _delete(self, name: str) -> None:
        delete_object(self._url_of(name), self._work.retry)

    def _url_of(self, name: str) -> str:
        return f"{self._work.place}/{self._work.key.digest}/{name}"


def _list_parts(job: GroupJob, found: set[str]) -> Iterator[_Part]:
    """Yield the parts of a group that are among the file names `found`."""
    for name in sorted(found):
        match = _PART.fullmatch(name)
        if match is not None and match["group"] == job.shards.name:
            yield _Part(name, match["node"], int(match["known"]))
