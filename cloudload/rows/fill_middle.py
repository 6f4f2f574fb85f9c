"""Move the middle of documents to their end, so that a model learns to fill in the middle.

    document                 a b c d e f g      cut before c and before f
    prefix, suffix, middle   P a b S f g M c d e
    suffix first             P S f g M a b c d e

P, S, and M are single tokens. The two orders are PSM, and SPM in its second form, of Bavarian et
al., "Efficient Training of Language Models to Fill in the Middle" (arXiv 2207.14255). The cuts are
uniform among the places between tokens, including both ends.

A document that is cut has three tokens more, and whether it is cut depends only on the run's seed
and on the sample's index in its dataset. So the lengths of documents before this step are enough
to know them after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.config import Fim
from cloudload.errors import TokenizerError
from cloudload.order import bijection
from cloudload.rows.tokenization.loading import load_hf
from cloudload.rows.tokenization.tokenizer import TokenizerSpec
from cloudload.system import Flags, Ints, Tokens, count_within

_FAMILIES = {
    "StarCoder, Granite, and Mellum": ("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),
    "SantaCoder": ("<fim-prefix>", "<fim-middle>", "<fim-suffix>"),
    "Qwen, CodeGemma, and tiktoken": ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    "DeepSeek": ("<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜fim▁hole｜>"),  # noqa: RUF001
    "Code Llama": ("▁<PRE>", "▁<MID>", "▁<SUF>"),
}
"""The tokens before the prefix, the middle, and the suffix, by model."""
_NUM_ADDED = 3
_CHOICE, _ORDER, _FIRST_CUT, _SECOND_CUT = range(4)
_DOMAIN = 0xF11


@dataclass(frozen=True)
class MiddleRule:
    """Which documents of a stream are cut, where, and by which tokens."""

    rate: float
    spm_rate: float
    prefix: int
    middle: int
    suffix: int
    seed: int

    @property
    def name(self) -> str:
        """What identifies the rule in a state, besides the seed."""
        return f"{self.rate}/{self.spm_rate}/{self.prefix}/{self.middle}/{self.suffix}"

    def lengthen(self, samples: Ints, lengths: Ints) -> Ints:
        """Return the lengths of documents after the cut, from those before it.

        `samples` are the documents' indices in their dataset. A document without tokens, or with a
        negative length because it is left out, is not cut. All arrays are int64 of one shape.
        """
        return lengths + _NUM_ADDED * self._is_cut(samples, lengths)

    def fill(self, tokens: Tokens, sizes: Ints, own: Ints, samples: Ints) -> tuple[Tokens, Ints]:
        """Cut some of the documents in `tokens` (int32 [tokens]), and return all of them.

        `sizes` (int64 [documents]) are the documents' numbers of tokens, and `own` (int64 [n]) the
        documents to which the rule applies, whose indices in their dataset are `samples`.
        """
        is_cut = self._is_cut(samples, sizes[own])
        own, samples = own[is_cut], samples[is_cut]
        if not len(own):
            return tokens, sizes
        size = sizes[own]
        draws = [self._draw(samples, number) for number in (_FIRST_CUT, _SECOND_CUT)]
        start, stop = np.sort([(draw * (size + 1)).astype(np.int64) for draw in draws], axis=0)
        is_spm = self._draw(samples, _ORDER) < self.spm_rate
        # each document has three parts of tokens, most of them empty if it is not cut, and each
        # part of a document that is cut comes after a sentinel
        firsts, widths = np.zeros((2, len(sizes), 3), np.int64)
        widths[:, 0] = sizes
        firsts[own, 0], widths[own, 0] = 0, np.where(is_spm, 0, start)
        firsts[own, 1], widths[own, 1] = stop, size - stop
        firsts[own, 2] = np.where(is_spm, 0, start)
        widths[own, 2] = stop - firsts[own, 2]
        marks = np.zeros((len(sizes), 3), np.int64)
        marks[own] = 1
        firsts += (np.cumsum(sizes) - sizes)[:, None]
        return self._arrange(tokens, firsts.ravel(), widths.ravel(), marks.ravel()), (
            sizes + marks.sum(axis=1)
        )

    def _arrange(self, tokens: Tokens, firsts: Ints, widths: Ints, marks: Ints) -> Tokens:
        """Copy parts of tokens one after the other, each after its sentinel if it has one."""
        ends = np.cumsum(widths + marks)
        begins = ends - widths
        found = np.empty(int(ends[-1]), np.int32)
        places = count_within(widths)
        found[places + np.repeat(begins, widths)] = tokens[places + np.repeat(firsts, widths)]
        marked = np.flatnonzero(marks)
        sentinels = np.array([self.prefix, self.suffix, self.middle], np.int32)
        found[begins[marked] - 1] = sentinels[marked % 3]
        return found

    def _is_cut(self, samples: Ints, sizes: Ints) -> Flags:
        return (sizes > 0) & (self._draw(samples, _CHOICE) < self.rate)

    def _draw(self, samples: Ints, number: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return a random number from 0 to 1, which is excluded, for each sample."""
        key = np.array([(_DOMAIN << 40) + (self.seed << 2) + number], np.uint64)
        words = samples.astype(np.uint64) * bijection.GOLDEN + bijection.scramble(key)
        found = bijection.scramble(words) >> np.uint64(11)
        return found.astype(np.float64) * 2.0**-53


def find_rule(fim: Fim, spec: TokenizerSpec, seed: int) -> MiddleRule:
    """Return the rule for the options of a stream, with the IDs of the sentinels.

    Raises `TokenizerError` if the tokenizer has no such tokens.
    """
    given = fim.prefix, fim.middle, fim.suffix
    ids = _find_family(spec) if None in given else tuple(_find_id(token, spec) for token in given)
    if ids is None:
        known = "; ".join(f"{', '.join(names)} ({model})" for model, names in _FAMILIES.items())
        raise TokenizerError(
            f"fim needs three tokens, but the tokenizer has none of these: {known}. Pass "
            "Fim(prefix=..., middle=..., suffix=...) with tokens of this tokenizer, or their IDs"
        )
    if len({*ids}) < _NUM_ADDED:
        raise TokenizerError(
            f"prefix, middle and suffix of Fim are the IDs {list(ids)}. Use three different tokens"
        )
    prefix, middle, suffix = ids
    return MiddleRule(fim.rate, fim.spm_rate, prefix, middle, suffix, seed)


def _find_family(spec: TokenizerSpec) -> tuple[int, ...] | None:
    if not spec.json:
        return None
    hf = load_hf(spec.json)
    for names in _FAMILIES.values():
        ids = [hf.token_to_id(name) for name in names]
        if None not in ids:
            return tuple(ids)
    return None


def _find_id(token: str | int | None, spec: TokenizerSpec) -> int:
    found = token if isinstance(token, int) else None
    if isinstance(token, str) and spec.json:
        found = load_hf(spec.json).token_to_id(token)
    if found is None or found >= spec.vocab_size:
        raise TokenizerError(
            f"{token!r} in Fim is not a token of the tokenizer. Use one of its tokens, or its ID"
        )
    return found
