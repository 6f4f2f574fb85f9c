"""`Documents`: samples by their index in one global order, for what is not packed into rows.

    docs[17] ─► epoch 0, position 17 ─► sample ─► {"prompt": …, "id": …}

    docs.batches(8)    this rank's part of each global batch     evaluation, preference pairs
    docs.queue()       documents that finish out of order        rollouts of reinforcement learning

Index k is position k of the canonical order, epoch after epoch, so it names the same sample on any
world and in any process. If documents are selected, only these have indices, in the same order.
Only what was delivered or finished counts as done:

    batches    a state is the next index                     0 1 2 3 | 4 5 …
    queue      a state is a frontier, and what is done       done done done | 3 - 5 - 7
               beyond it                                     frontier 3, done 5 7

The order depends on all shards. After a state was loaded, the documents are those of the shards
that there were when the order began.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cloudload.config import (
    DeliveryConfig,
    RowsConfig,
    ShuffleAlgorithm,
    Stream,
    Verification,
    as_streams,
    checks,
)
from cloudload.data import (
    ID_KEY,
    Corpus,
    Retry,
    ShardCache,
    cache_folder,
    open_corpus,
    selections,
    urls,
)
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.loading.current_run import log_left_out
from cloudload.loading.delivery.world import current_environment
from cloudload.loading.selected_order import SelectedOrder
from cloudload.order import EpochOrders
from cloudload.run import Component, find_saved_shards, find_streams, order_corpus, state_fields
from cloudload.system import Ints, Spares, option_help

Document = dict[str, Any]
"""A sample's values by column."""
MOST_AHEAD = 1 << 16
"""The most documents that may be done, or taken, beyond one that is not done."""
_VERSION, _STREAM_SHARDS = 1, "stream_shards"
_MOST_INDEX = 1 << 62


@dataclass(frozen=True)
class DocumentPlace:
    """Where a document is in the data."""

    stream: str
    """The name of the stream."""
    epoch: int
    sample: int
    """The index of the sample within its stream."""
    shard: str
    """The file name of its uncompressed shard."""
    id: Any
    """The value of its column `id`, or None if it has none."""


@dataclass(frozen=True)
class _Order:
    """The selected samples of a corpus in their global order."""

    config: RowsConfig
    corpus: Corpus
    selection: selections.CorpusSelection | None
    """The samples that have an index; None if all of them have."""
    cache_root: Path

    @cached_property
    def component(self) -> Component:
        """The streams of the corpus, in one order, which does not depend on the selection."""
        return order_corpus(self.config, self.corpus, (None,) * len(self.labels))

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of each stream."""
        return tuple(stream.label for stream in self.config.streams)

    @property
    def shards(self) -> list[int]:
        """The number of shards of each stream."""
        return [len(dataset.shards) for dataset in self.corpus.datasets]

    def begin(self, state: Mapping[str, Any]) -> _Order:
        """Return the order with only the shards of a state.

        Returns the order itself if no shards were appended, or if its data does not begin with that
        of the state. Raises `StreamChangedError` if the state is damaged.
        """
        shards = state.get(_STREAM_SHARDS, [])
        if not isinstance(shards, list) or any(type(each) is not int for each in shards):
            raise _damaged(_STREAM_SHARDS)
        wanted = str(state.get("data", "")), str(state.get("samples", ""))
        streams = range(len(self.labels))
        found = find_saved_shards(self.corpus, streams, wanted, shards, str(state.get("choose")))
        if found is None or found == self.shards:
            return self
        corpus = self.corpus.take(found)
        selection = self.selection and self.selection.take(corpus)
        return replace(self, corpus=corpus, selection=selection)

    def open(self) -> EpochOrders:
        return self.component.orders(self.cache_root)

    @cached_property
    def num_documents(self) -> int:
        """The number of indices of an epoch."""
        sampling, corpus = self.component.sampling, self.corpus
        if self.selection is None:
            return self.component.num_positions
        samples = np.diff(corpus.stream_starts).tolist()
        chosen = sampling.choose if sampling else samples
        return sum(
            number if own is None else own.num_selected * (number // size)
            for own, number, size in zip(self.selection.datasets, chosen, samples, strict=True)
        )

    @cached_property
    def _selected(self) -> SelectedOrder | None:
        if self.selection is None:
            return None
        return SelectedOrder(self.selection, self.component.num_positions, self.num_documents)

    def split(self, indices: Ints) -> tuple[Ints, Ints]:
        """The epoch of each index, and the index in it: int64 [indices] each."""
        return np.divmod(indices, np.int64(self.num_documents))

    def find(self, orders: EpochOrders, indices: Ints) -> Ints:
        """The sample in the corpus at each index: int64 [indices]."""
        epochs, within = self.split(indices)
        if self._selected is None:
            return orders.samples_at(epochs, within)
        return self._selected.samples_at(orders, epochs, within)

    def describe(self) -> dict[str, Any]:
        """What a state says about the order: plain JSON types."""
        order, every = self.component.order, range(len(self.corpus.datasets))
        sampling = self.component.sampling
        selection = self.selection
        return {
            "data": self.corpus.fingerprint(every),
            "samples": self.corpus.fingerprint_samples(every),
            "choose": list(sampling.choose) if sampling else self.component.num_positions,
            "shuffle": order.shuffle,
            "shuffle_algo": order.shuffle_algo if order.shuffle else "",
            "shuffle_block_size": order.shuffle_block_size if order.shuffle else 0,
            "num_canonical_nodes": self.component.lanes.num_nodes,
            "seed": order.seed,
            _STREAM_SHARDS: self.shards,
            **({} if selection is None else {state_fields.SELECT_FIELD: selection.digest}),
        }


class _DocumentSource:
    """Reads documents for one caller at a time."""

    def __init__(
        self, order: _Order, columns: Sequence[str] | None, delivery: DeliveryConfig
    ) -> None:
        self._order, self._orders, self._columns = order, order.open(), columns
        self._cache = ShardCache(
            order.corpus,
            order.cache_root,
            limit_bytes=delivery.cache_limit_bytes(),
            threads=delivery.download_threads,
            verify=delivery.verify,
        )

    def find(self, indices: Ints) -> Ints:
        """The sample in the corpus at each index: int64 [indices]."""
        return self._order.find(self._orders, indices)

    def read(self, samples: Ints) -> list[Document]:
        """Read samples of the corpus, in their order. Fetches each of their shards once."""
        corpus = self._order.corpus
        shards = corpus.shards_of(samples)
        self._cache.prefetch(dict.fromkeys(shards.tolist()))
        found: list[Document] = [{}] * len(samples)
        for index in np.argsort(shards, kind="stable").tolist():
            number = int(shards[index])
            shard, sample = self._cache.shard(number), int(samples[index])
            names = self._columns
            if names is None:
                names = [column.name for column in shard.info.columns]
            found[index] = shard.read_columns(sample - int(corpus.shard_starts[number]), names)
        return found

    def place(self, index: int) -> DocumentPlace:
        corpus = self._order.corpus
        sample = self.find(np.array([index], np.int64))
        stream = int(corpus.streams_of(sample)[0])
        number = int(corpus.shards_of(sample)[0])
        shard = self._cache.shard(number)
        values = shard.read_columns(int(sample[0] - corpus.shard_starts[number]), [ID_KEY])
        return DocumentPlace(
            stream=self._order.labels[stream],
            epoch=int(self._order.split(np.array([index], np.int64))[0][0]),
            sample=int(sample[0] - corpus.stream_starts[stream]),
            shard=shard.info.raw.name,
            id=values.get(ID_KEY),
        )

    def prefetch(self, indices: Ints) -> None:
        shards = self._order.corpus.shards_of(self.find(indices))
        self._cache.prefetch(dict.fromkeys(shards.tolist()))

    def close(self) -> None:
        self._cache.close()


class _CurrentOrder:
    """The order in which documents are read now, and its readers. A state may replace both."""

    def __init__(
        self, whole: _Order, columns: Sequence[str] | None, delivery: DeliveryConfig
    ) -> None:
        self._whole, self._columns, self._delivery = whole, columns, delivery
        self._now = self._open(whole)

    def _open(self, order: _Order) -> tuple[_Order, Spares[_DocumentSource]]:
        make = partial(_DocumentSource, order, self._columns, self._delivery)
        return order, Spares(make, _DocumentSource.close)

    @property
    def order(self) -> _Order:
        """The order of the documents."""
        return self._now[0]

    @property
    def readers(self) -> Spares[_DocumentSource]:
        """The readers of the documents."""
        return self._now[1]

    def find(self, state: Mapping[str, Any]) -> _Order:
        """Return the order of a state, without shards that were appended since it began.

        Raises `StreamChangedError` if the state is of another order or other data, or is damaged.
        """
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise StreamChangedError(
                "this is not a state of Documents. Pass what state_dict() returned"
            )
        order = self._whole.begin(state)
        _check_state(state, order)
        return self.order if order.shards == self.order.shards else order

    def follow(self, order: _Order) -> None:
        """Read the documents of an order that `find` returned from now on."""
        if order is self.order:
            return
        before, self._now = self.readers, self._open(order)
        before.close()
        if current_environment().is_first_process(self._delivery):
            log_left_out(order.labels, order.corpus)


class Documents(torch.utils.data.Dataset[Document]):
    """A map-style dataset of documents, as they are, in a global order.

    `docs[k]` is document k of the order: a dict of its columns. The order is the canonical order of
    a `CloudLoader` with the same streams, seed and shuffle, epoch after epoch. It does not depend
    on ranks or workers. Threads and processes may share the dataset. Random access fetches the
    shard of a document, so it is fast only if the shards are in the cache, or if indices are near
    each other.

    Args:
        data: as for `CloudLoader`. `proportion` is not possible. With `select` or `drop`, only the
            selected documents have indices, and `repeat` must be a whole number.
        select: the `select` of `data`, if it is one location.
        columns: the columns to read, by default all. A document lacks those that its shard lacks.
        shuffle: as for `CloudLoader`, and so are `shuffle_algo`, `shuffle_block_size`,
            `num_canonical_nodes`, `seed`, `local`, `cache_limit`, `download_threads`, `verify`, and
            `retry`.
        epochs: the number of passes over the data that the dataset has. None means no end.

    Raises:
        ValueError: if an argument is invalid.
        DatasetError: if the data cannot be read.
        StoreError: if a store cannot be read.
    """

    @option_help.suggests_names
    def __init__(
        self,
        data: str | os.PathLike[str] | Stream | Sequence[str | Stream],
        *,
        select: str | None = None,
        columns: Sequence[str] | None = None,
        shuffle: bool = RowsConfig.shuffle,
        shuffle_algo: ShuffleAlgorithm = RowsConfig.shuffle_algo,
        shuffle_block_size: int | None = RowsConfig.shuffle_block_size,
        num_canonical_nodes: int | None = RowsConfig.num_canonical_nodes,
        seed: int = RowsConfig.seed,
        epochs: int | None = 1,
        local: str | os.PathLike[str] | None = DeliveryConfig.local,
        cache_limit: int | str | None = DeliveryConfig.cache_limit,
        download_threads: int = DeliveryConfig.download_threads,
        verify: Verification = DeliveryConfig.verify,
        retry: Retry | None = None,
    ) -> None:
        config = RowsConfig(
            streams=find_streams(_select(as_streams(data), select), retry).streams,
            seq_len=1,
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            shuffle_block_size=shuffle_block_size,
            num_canonical_nodes=num_canonical_nodes,
            seed=seed,
            epochs=epochs,
        )
        if config.is_mixed:
            raise ValueError(
                "a stream has a proportion, but Documents have one order over all streams. Use "
                "repeat or choose, or create Documents for each stream"
            )
        for stream in config.streams:
            is_fraction = isinstance(stream.repeat, float) and not stream.repeat.is_integer()
            if is_fraction and (stream.select or stream.drop):
                raise ValueError(
                    f"{stream.label} has repeat {stream.repeat!r} and select or drop, so epochs "
                    "would have different numbers of documents. Use a whole number for repeat"
                )
        if isinstance(columns, str):
            raise ValueError(f"columns is {columns!r}. Use a list of names")
        columns = None if columns is None else tuple(columns)
        delivery = DeliveryConfig(
            batch_size=1,
            local=local,
            cache_limit=cache_limit,
            download_threads=download_threads,
            verify=verify,
        )
        root = urls.expand_home(local) if local else cache_folder.default_cache()
        cache_folder.check_cache_folder(root, [stream.url for stream in config.streams])
        corpus = open_corpus([each.locate(retry or Retry()) for each in config.streams], root)
        _check_columns(corpus, columns or ())
        selected = tuple(
            selections.open_selection(dataset, stream.select, stream.drop, root)
            for dataset, stream in zip(corpus.datasets, config.streams, strict=True)
        )
        order = _Order(config, corpus, selections.CorpusSelection.join(selected, corpus), root)
        _ = order.component  # raises if the options do not suit the data
        self._epochs = epochs
        cache_folder.open_cache_folder(root)
        self._reading = _CurrentOrder(order, columns, delivery)

    @property
    def num_documents(self) -> int:
        """The number of documents in an epoch."""
        return self._reading.order.num_documents

    @property
    def end(self) -> int | None:
        """The index after the last one; None if there is no end."""
        return self._end_of(self._reading.order)

    def _end_of(self, order: _Order) -> int | None:
        """The index after the last one, if the documents had another order."""
        return None if self._epochs is None else self._epochs * order.num_documents

    def __len__(self) -> int:
        """The number of documents in all epochs. Raises `TypeError` if there is no end."""
        if self.end is None:
            raise TypeError("the documents have no end, so they have no length. Pass epochs=N")
        return self.end

    def __getitem__(self, index: int) -> Document:
        """Return document `index`.

        Raises `IndexError` for an index beyond the end, and `CloudloadError` if the document cannot
        be read.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Document]:
        """Return several documents, in the order of `indices`; a `DataLoader` calls this once per
        batch. Raises the errors of `__getitem__`."""
        wanted = self._check(indices)
        if not len(wanted):
            return []
        with self._reading.readers.lend() as reader:
            return reader.read(reader.find(wanted))

    def __iter__(self) -> Iterator[Document]:
        """Yield all documents in order. Threads may share the iterator.

        It raises `DatasetError` once a loaded state has changed the documents.
        """
        place = _Place(self, self._reading)

        def read(index: int) -> Document:
            place.check_order()
            return self[index]

        return map(read, itertools.count() if self.end is None else range(self.end))

    def where(self, index: int) -> DocumentPlace:
        """Say where a document is in the data. Raises the errors of `__getitem__`."""
        [wanted] = self._check([index]).tolist()
        with self._reading.readers.lend() as reader:
            return reader.place(wanted)

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start fetching the shards of documents that will be read soon."""
        with self._reading.readers.lend() as reader:
            reader.prefetch(self._check(indices))

    def _check(self, indices: Sequence[int]) -> Ints:
        """Return valid indices: int64 [indices]. Negative ones count from the end, as in lists."""
        given = [checks.as_integer("index", index) for index in indices]
        end = self.end or 0
        found = [index + end if index < 0 else index for index in given]
        most = _MOST_INDEX if self.end is None else min(end, _MOST_INDEX)
        for wrong, index in zip(given, found, strict=True):
            if not 0 <= index < most:
                size = "have no end" if self.end is None else f"have {self.end:,} indices"
                raise IndexError(f"index {wrong} is out of range, because the documents {size}")
        return np.array(found, np.int64)

    def batches(
        self,
        batch_size: int,
        *,
        collate_fn: Callable[[list[Document]], Any] | None = None,
        num_workers: int = 0,
        dp_rank: int | None = None,
        dp_world_size: int | None = None,
    ) -> DocumentBatches:
        """Iterate over this rank's documents in batches, with a state.

        A global batch is the next `batch_size` documents of each rank. `collate_fn` turns a list of
        documents into a batch; by default, the list is the batch. `num_workers` is the number of
        worker processes that read ahead. The rank and the number of ranks come from
        torch.distributed or the environment, as for `CloudLoader`.
        """
        return DocumentBatches(
            self,
            self._reading,
            checks.as_integer("batch_size", batch_size, 1),
            collate_fn=collate_fn or list,
            num_workers=checks.as_integer("num_workers", num_workers, 0),
            delivery=DeliveryConfig(batch_size=1, dp_rank=dp_rank, dp_world_size=dp_world_size),
        )

    def queue(self) -> DocumentQueue:
        """Hand out documents that may finish in any order, with a state."""
        return DocumentQueue(self, self._reading)

    def close(self) -> None:
        """Stop fetching and unmap the shards. The next access opens them again."""
        self._reading.readers.close()

    def __repr__(self) -> str:
        size = "no end" if self.end is None else f"{self.end:,} documents"
        return f"Documents({', '.join(self._reading.order.labels)}, {size})"


class _Place:
    """A place in the order that documents had when it began."""

    def __init__(self, docs: Documents, reading: _CurrentOrder) -> None:
        self._docs, self._reading, self._order = docs, reading, reading.order
        self._lock = threading.RLock()  # a signal handler may save a state during a call

    def check_order(self) -> None:
        """Raise `DatasetError` if another state has changed the documents."""
        if self._reading.order is not self._order:
            raise DatasetError(
                "the documents have changed, because a state was loaded that has another number of "
                "shards. Load a state here, too, or create other Documents for each state"
            )

    def _describe(self, **position: Any) -> dict[str, Any]:
        return {"version": _VERSION, **position, **self._order.describe()}

    def _check_end(self, last: int, order: _Order) -> None:
        """Raise `StreamChangedError` if a state has documents up to `last`, after their end."""
        end = self._docs._end_of(order)
        if end is not None and last > end:
            raise StreamChangedError(
                f"the state has finished documents up to index {last - 1:,}, but the documents "
                f"have {end:,} indices. Use the epochs with which it was saved, or more"
            )

    def _follow(self, order: _Order) -> None:
        self._reading.follow(order)
        self._order = order


class DocumentBatches(_Place):
    """This rank's documents in batches. Create it with `Documents.batches`.

    The state counts batches that the training loop received, whatever the workers have read ahead.
    It is the same on all ranks after the same batch, and reading it needs no communication. A
    resume may have another number of ranks, and another batch size.

    All ranks have equally many batches. In the last ones of a finite order, a rank may have fewer
    documents, or none.
    """

    def __init__(
        self,
        docs: Documents,
        reading: _CurrentOrder,
        batch_size: int,
        *,
        collate_fn: Callable[[list[Document]], Any],
        num_workers: int,
        delivery: DeliveryConfig,
    ) -> None:
        super().__init__(docs, reading)
        self._batch_size, self._collate_fn = batch_size, collate_fn
        self._num_workers, self._delivery = num_workers, delivery
        self.next_index = 0
        """The index of the first document that is in no batch yet, of any rank."""
        self._num_iterators = 0

    def __iter__(self) -> Iterator[Any]:
        """Iterate from the position to the end.

        A new iterator, or a loaded state, ends earlier ones: they raise `DatasetError`.
        """
        world = current_environment().find_world(self._delivery)
        step = self._batch_size * world.size
        with self._lock:
            self.check_order()
            self._num_iterators = number_of_this = self._num_iterators + 1
            first = self.next_index
        size = self._batch_size
        parts = _BatchIndices(first, step, world.rank * size, size, self._docs.end)
        loader: Iterable[Any] = torch.utils.data.DataLoader(
            self._docs,
            batch_sampler=parts,
            num_workers=self._num_workers,
            collate_fn=self._collate_fn,
            # the default draws from torch's own generator, so a resumed run would differ
            generator=torch.Generator().manual_seed(first),
        )
        for number, batch in enumerate(loader, 1):
            with self._lock:
                if number_of_this != self._num_iterators:
                    raise DatasetError(
                        "this iterator of batches has ended, because there is a newer one, or a "
                        "state was loaded. Use the newest one, or iterate again"
                    )
                self.check_order()
                self.next_index = _clip(first + number * step, self._docs.end)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was received: plain JSON types."""
        return self._describe(next=self.next_index)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after a state. The documents are then those of its shards, without shards that
        were appended since.

        Raises `StreamChangedError` if it is of another order or data, or is damaged.
        """
        order, next_index = self._reading.find(state), _read_index(state, "next")
        self._check_end(next_index, order)
        with self._lock:
            self._follow(order)
            self.next_index = next_index
            self._num_iterators += 1


def _select(streams: Sequence[Stream], select: str | None) -> Sequence[Stream]:
    """Set the selection of the only stream. Raises `ValueError` if that is not possible."""
    if select is None:
        return streams
    if len(streams) != 1 or streams[0].select is not None:
        raise ValueError(
            "select needs data that is one location without a selection. Set select of each "
            "Stream instead"
        )
    return [replace(streams[0], select=select)]


def _check_columns(corpus: Corpus, wanted: Sequence[str]) -> None:
    """Raise `DatasetError` for a column that no shard has."""
    sets = [columns for each in corpus.datasets for columns in each.table.column_sets()]
    known = {column.name for columns in sets for column in columns}
    if unknown := [name for name in wanted if name not in known]:
        raise DatasetError(
            f"no shard has the column {unknown[0]!r}. Use some of these columns: "
            f"{', '.join(sorted(known))}"
        )


def _clip(index: int, end: int | None) -> int:
    return index if end is None else min(index, end)


@dataclass(frozen=True)
class _BatchIndices:
    """The indices of each of a rank's batches. Can be iterated again, in any process."""

    first: int
    step: int
    """The number of indices of all ranks in a step."""
    offset: int
    """Where the rank's indices begin in a step."""
    size: int
    end: int | None

    def __iter__(self) -> Iterator[list[int]]:
        start = self.first
        while self.end is None or start < self.end:
            own = start + self.offset
            yield list(range(own, _clip(own + self.size, self.end)))
            start += self.step


@dataclass(frozen=True)
class _Progress:
    """Which documents of a queue were taken, and which are done.

    It is replaced as a whole, so an interrupt or a signal handler never sees half of a change.
    """

    frontier: int = 0
    next: int = 0
    """The first index that was never taken."""
    done: frozenset[int] = frozenset()
    """The indices that are done beyond the frontier."""

    def finish(self, indices: set[int]) -> _Progress:
        """Return the progress after more documents are done."""
        done, frontier = self.done | indices, self.frontier
        while frontier in done:
            frontier += 1
        done = done.difference(range(self.frontier, frontier))
        # a state may have documents beyond the next one that are done; they are not taken again
        return _Progress(frontier, max(self.next, frontier), done)


class DocumentQueue(_Place):
    """Documents that one process hands out, and that finish in any order.

    It belongs to the one process that controls the rollouts, whose state is the state of the job.
    A document that was taken, but was not done when the state was saved, is handed out again.
    Threads of the process may share the queue.
    """

    def __init__(self, docs: Documents, reading: _CurrentOrder) -> None:
        super().__init__(docs, reading)
        self._progress = _Progress()

    @property
    def frontier(self) -> int:
        """The first index that is not done."""
        return self._progress.frontier

    @property
    def open(self) -> list[int]:
        """The indices that were taken and are not done, ascending."""
        with self._lock:
            now = self._progress
            return [index for index in range(now.frontier, now.next) if index not in now.done]

    def take(self, number: int) -> list[tuple[int, Document]]:
        """Hand out the next `number` documents, or fewer at the end, with their indices.

        Raises `DatasetError` if a document taken long ago is still not done, and the errors of
        `Documents`.
        """
        number = checks.as_integer("number", number, 0)
        with self._lock:
            self.check_order()
            now = self._progress
            wanted, index = list[int](), now.next
            while len(wanted) < number and (self._docs.end is None or index < self._docs.end):
                if index not in now.done:
                    if index - now.frontier >= MOST_AHEAD:
                        raise DatasetError(
                            f"document {now.frontier:,} is not done, while document {index:,} is "
                            f"asked for. At most {MOST_AHEAD:,} may be taken before it is done. "
                            "Call done() for it, even if it failed"
                        )
                    wanted.append(index)
                index += 1
            documents = self._docs.__getitems__(wanted)
            self._progress = replace(self._progress, next=index)
        return list(zip(wanted, documents, strict=True))

    def done(self, indices: Iterable[int]) -> None:
        """Record that documents are done, whatever their order.

        Raises `ValueError` for an index that was not taken, or that is done already.
        """
        with self._lock:
            given, now = set[int](), self._progress
            for each in indices:
                index = checks.as_integer("index", each)
                was_done = index < now.frontier or index in now.done or index in given
                if not 0 <= index < now.next or was_done:
                    why = "is done already" if was_done and index >= 0 else "was not taken"
                    raise ValueError(f"document {index:,} {why}. Pass each index of take() once")
                given.add(index)
            self._progress = now.finish(given)

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the frontier, and what is done beyond it; plain JSON types."""
        with self._lock:
            now = self._progress
            return self._describe(frontier=now.frontier, done=sorted(now.done))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a state: what is not done in it is handed out again. The documents are then
        those of its shards, without shards that were appended since.

        Raises `StreamChangedError` if it is of another order or other data, or is damaged.
        """
        order = self._reading.find(state)
        frontier, done = _read_index(state, "frontier"), state.get("done")
        if not isinstance(done, list) or any(type(each) is not int for each in done):
            raise _damaged("done")
        if sorted(set(done)) != done or (done and done[0] <= frontier):
            raise _damaged("done")
        self._check_end(done[-1] + 1 if done else frontier, order)
        with self._lock:
            self._follow(order)
            self._progress = _Progress(frontier, frontier, frozenset(done))


def _check_state(state: Mapping[str, Any], order: _Order) -> None:
    """Raise `StreamChangedError` unless a state is of the same order over the same samples."""
    found = order.describe()
    del found[_STREAM_SHARDS]  # follows from the data
    found.setdefault(state_fields.SELECT_FIELD, None)  # a state may have a selection nevertheless
    changed = [name for name in found if state.get(name) != found[name]]
    is_written_again = found["samples"] and "samples" not in changed
    if is_written_again or "data" not in changed:  # perhaps copied from shards without hashes
        changed = [name for name in changed if name not in ("data", "samples")]
    if changed:
        shown = "; ".join(
            f"{name}: saved {state.get(name)!r:.80}, found {found[name]!r:.80}" for name in changed
        )
        raise StreamChangedError(
            f"the state does not match these documents: {shown}. Restore the saved values, or "
            "start without the state"
        )


def _read_index(state: Mapping[str, Any], name: str) -> int:
    index = state.get(name)
    if type(index) is not int or not 0 <= index < _MOST_INDEX:
        raise _damaged(name)
    return index


def _damaged(name: str) -> StreamChangedError:
    return StreamChangedError(f"{name}: the state is damaged. Load an earlier one")
