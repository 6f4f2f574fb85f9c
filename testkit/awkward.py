"""Hypothesis strategies for unusual corpora, configs, and worlds."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hypothesis import strategies as st

from cloudload import Stream
from cloudload.testing import Leg
from testkit.corpora import EOS_ID, byte_tokenizer, write_mds


@functools.cache
def tokenize(text: str) -> tuple[int, ...]:
    """The token IDs of a document from the Hugging Face byte tokenizer, without bos or eos.

    Special tokens in the text are encoded as text.
    """
    tokenizer = byte_tokenizer()
    tokenizer.encode_special_tokens = True
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True)
class Case:
    """A corpus, a config, and the legs of a run whose worlds may read them."""

    shards: tuple[tuple[str, ...], ...]
    seq_len: int
    num_lanes: int
    num_canonical_nodes: int
    shuffle: bool
    shuffle_algo: str
    shuffle_block_size: int
    seed: int
    epochs: int | None
    legs: tuple[Leg, ...]
    eos: bool = True
    packing: str = "concat"
    open_rows: int = 2
    overflow: str = "cut"
    cuts: tuple[int, ...] = ()
    """The indexes of the shards that start a new stream, without 0."""
    proportions: tuple[float, ...] | None = None
    repeats: tuple[float, ...] | None = None
    min_tokens: int = 0
    deselected: frozenset[str] = frozenset()
    """The texts of the documents that the streams drop."""

    def tokens(self, document: str) -> tuple[int, ...]:
        """The tokens of a document, and the eos if the case adds one."""
        return tokenize(document) + (EOS_ID,) * self.eos

    def kept(self, document: str) -> tuple[int, ...]:
        """The tokens of a document that the run puts into rows. One that is left out has none."""
        if len(self.tokens(document)) < self.min_tokens or document in self.deselected:
            return ()
        is_cut = self.packing == "one_per_row" and self.overflow == "cut"
        return self.tokens(document)[: self.seq_len if is_cut else None]

    @property
    def streams(self) -> list[tuple[tuple[str, ...], ...]]:
        """The shards of each stream."""
        bounds = [0, *self.cuts, len(self.shards)]
        return [self.shards[start:stop] for start, stop in pairwise(bounds)]

    @property
    def documents(self) -> list[str]:
        return [text for shard in self.shards for text in shard]


@st.composite
def cases(
    draw: st.DrawFn,
    epochs: Sequence[int | None] = (None, 1, 2),
    most_legs: int = 4,
    packings: Sequence[str] = ("concat", "best_fit", "one_per_row"),
    mixtures: Sequence[str] = ("one stream", "one corpus", "repeated", "mixed"),
    *,
    may_deselect: bool = False,
) -> Case:
    """Cases whose legs can end inside an epoch, document, exchange window, or round of lanes.

    With `may_deselect`, the streams of some cases drop documents.
    """
    texts = st.text(alphabet="ab<eos>é\0", max_size=draw(st.sampled_from([3, 12, 40])))
    shards = draw(
        st.lists(st.lists(texts, min_size=1, max_size=9).map(tuple), min_size=1, max_size=5)
    )
    num_samples = sum(map(len, shards))
    num_lanes = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]))
    worlds = [ranks for ranks in (1, 2, 3, 4, 6, 8, 12) if num_lanes % ranks == 0]
    nodes = [
        nodes for nodes in (1, 2, 3, 4, 6, 8) if num_lanes % nodes == 0 and nodes <= num_samples
    ]
    leg_count = draw(st.integers(1, most_legs))
    how_many_epochs = draw(st.sampled_from(list(epochs)))
    mixture = draw(
        st.sampled_from([kind for kind in mixtures if kind != "mixed" or how_many_epochs is None])
    )
    cuts: list[int] = []
    if mixture != "one stream" and len(shards) > 1:
        cuts = sorted(draw(st.sets(st.integers(1, len(shards) - 1), min_size=1, max_size=3)))
    # add an eos to endless runs, because an endless lane of only empty documents is an error
    eos = how_many_epochs is None or not any(map(any, shards)) or draw(st.booleans())
    is_any_long = any(len(text) > 1 for shard in shards for text in shard)
    legs = []
    for _ in range(leg_count):
        ranks = draw(st.sampled_from(worlds))
        legs.append(
            Leg(
                ranks=ranks,
                workers=draw(st.integers(0, 5)),
                batch_size=draw(st.integers(1, 5)),
                batches=draw(st.integers(1, 5)),
                ranks_per_node=draw(
                    st.sampled_from([d for d in (1, 2, 3, 4) if math.gcd(d, ranks) == d])
                ),
                exchange_every=draw(st.integers(1, 4)),
            )
        )
    min_tokens = draw(st.sampled_from([0, 2])) if how_many_epochs is not None and is_any_long else 0
    algorithms, shuffle = (
        ["py1e", "py1br", "py1s", "py2s", "naive", "seekable"],
        draw(st.booleans()),
    )
    deselected: frozenset[str] = frozenset()
    if may_deselect and draw(st.booleans()):
        deselected = draw(_deselected(shards, cuts, 1 if eos else max(1, min_tokens)))
    if deselected and how_many_epochs is None:
        # an endless lane must not get only documents that are left out
        nodes, shuffle, algorithms = [1], True, ["naive", "py1s"]
    return Case(
        shards=tuple(shards),
        seq_len=draw(st.integers(1, 17)),
        num_lanes=num_lanes,
        num_canonical_nodes=draw(st.sampled_from(nodes)),
        shuffle=shuffle,
        shuffle_algo=draw(st.sampled_from(algorithms)),
        shuffle_block_size=draw(st.integers(2, 20)),
        seed=draw(st.integers(0, 1000)),
        epochs=how_many_epochs,
        legs=tuple(legs),
        eos=eos,
        packing=draw(st.sampled_from(list(packings))),
        open_rows=draw(st.integers(1, 4)),
        overflow=draw(st.sampled_from(["cut", "rows"])),
        cuts=tuple(cuts),
        proportions=tuple(draw(_weights(len(cuts) + 1))) if mixture == "mixed" and cuts else None,
        repeats=tuple(draw(st.sampled_from([1, 2, 1.5, 2.4])) for _ in range(len(cuts) + 1))
        if mixture == "repeated"
        else None,
        min_tokens=min_tokens,
        deselected=deselected,
    )


@st.composite
def _deselected(
    draw: st.DrawFn, shards: Sequence[Sequence[str]], cuts: Sequence[int], least: int
) -> frozenset[str]:
    """Texts of at most half of each stream's documents. A text of `least` characters is left."""
    bounds = [0, *cuts, len(shards)]
    streams = [[text for shard in shards[a:b] for text in shard] for a, b in pairwise(bounds)]
    chosen = draw(st.sets(st.sampled_from([text for texts in streams for text in texts])))
    is_left = any(len(text) >= least and text not in chosen for texts in streams for text in texts)
    counts = [sum(text in chosen for text in texts) for texts in streams]
    is_fair = all(2 * n <= len(texts) for n, texts in zip(counts, streams, strict=True))
    return frozenset(chosen) if is_left and is_fair else frozenset()


@st.composite
def _weights(draw: st.DrawFn, count: int) -> list[float]:
    weights = [draw(st.sampled_from([0.0, 0.1, 1.0, 3.0])) for _ in range(count)]
    return weights if any(weights) else [1.0] * count


def write_case(folder: str, case: Case) -> list[Stream]:
    """Write the case's corpus with exactly its shards. Each stream is an MDS dataset."""
    streams = []
    for number, shards in enumerate(case.streams):
        documents = [text for shard in shards for text in shard]
        url = write_mds(
            f"{folder}/{number}", documents, shard_samples=[len(shard) for shard in shards]
        )
        proportion = case.proportions[number] if case.proportions else None
        repeat = case.repeats[number] if case.repeats else None
        name, drop = f"stream-{number}", write_drops(f"{folder}/{number}.csv", shards, case)
        streams.append(Stream(url, proportion=proportion, repeat=repeat, name=name, drop=drop))
    return streams


def write_drops(path: str, shards: Sequence[Sequence[str]], case: Case) -> str | None:
    """List the documents of a stream that the case deselects in a file, if there are any."""
    lines = [
        f"{shard},{index}"
        for shard, texts in enumerate(shards)
        for index, text in enumerate(texts)
        if text in case.deselected
    ]
    if not lines:
        return None
    Path(path).write_text("\n".join(["shard,index", *lines]))
    return path


def legs(
    ranks: st.SearchStrategy[int] | None = None,
    *,
    batches: st.SearchStrategy[int],
    most_workers: int = 2,
    nodes: Sequence[int | None] = (None, 1, 3),
    **more: st.SearchStrategy[int],
) -> st.SearchStrategy[Leg]:
    """Legs of up to 9 ranks by default, with up to 4 rows per rank. `nodes` are ranks per node."""
    return st.builds(
        Leg,
        ranks=st.integers(1, 9) if ranks is None else ranks,
        workers=st.integers(0, most_workers),
        batch_size=st.integers(1, 4),
        batches=batches,
        ranks_per_node=st.sampled_from(list(nodes)),
        **more,
    )


def few_legs(
    ranks: Sequence[int] = (1, 2, 3),
    workers: Sequence[int] = (0, 2),
    batches: st.SearchStrategy[int | None] | None = None,
) -> st.SearchStrategy[list[Leg]]:
    """Runs of 1 to 3 legs, with up to 5 rows per rank. By default, a leg may read to the end."""
    leg = st.builds(
        Leg,
        ranks=st.sampled_from(list(ranks)),
        workers=st.sampled_from(list(workers)),
        batch_size=st.integers(1, 5),
        batches=st.sampled_from([1, 3, None]) if batches is None else batches,
        exchange_every=st.integers(1, 3),
    )
    return st.lists(leg, min_size=1, max_size=3)


def without_end(legs: Sequence[Leg]) -> list[Leg]:
    """The legs that an endless run can take; one of a single rank if there are none."""
    return [leg for leg in legs if leg.batches] or [Leg()]


MANY_RANKS = st.one_of(st.integers(1, 9), st.integers(1, 40))
