"""Documents are cut in the same way on any world, at any resume, and in counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from cloudload import Chat, Fim, Rows, Stream, count_tokens
from cloudload.errors import StreamChangedError, TokenizerError
from cloudload.provenance import open_run, trace_steps
from cloudload.rows.fill_middle import MiddleRule
from cloudload.testing import Leg, check_resume, run_leg, run_legs
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds
from testkit.counted import count
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader, ranks

DOCUMENTS = ["", "x", *random_documents(4, 60)]
PREFIX, MIDDLE, SUFFIX, SEED = 300, 301, 302, 17
LEGS = [Leg(2, batches=3), Leg(3, workers=2, batches=2), Leg(1, batch_size=5, batches=None)]
FIM = Fim(rate=0.7)


def with_sentinels(*names: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(byte_tokenizer().to_str())
    tokenizer.add_special_tokens(list(names))
    return tokenizer


TOKENIZER = with_sentinels("<fim_prefix>", "<fim_middle>", "<fim_suffix>")
OPTIONS: dict[str, Any] = {"tokenizer": TOKENIZER, "eos": EOS}


def sentinel(name: str) -> int:
    names = {"P": "prefix", "M": "middle", "S": "suffix"}
    return int(TOKENIZER.token_to_id(f"<fim_{names[name]}>"))


def rule_of(fim: Fim) -> MiddleRule:
    prefix, middle, suffix = map(sentinel, "PMS")
    return MiddleRule(fim.rate, fim.spm_rate, prefix, middle, suffix, SEED)


def cut(sample: int, ids: list[int], fim: Fim) -> list[int]:
    """What a document alone becomes."""
    found, _ = rule_of(fim).fill(
        np.array(ids, np.int32), np.array([len(ids)]), np.array([0]), np.array([sample])
    )
    return [int(each) for each in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents, their tokens, and their tokens after the cuts."""
    ids = [TOKENIZER.encode(text).ids for text in DOCUMENTS]
    filled = [cut(sample, one, FIM) for sample, one in enumerate(ids)]
    extra: dict[str, Any] = {"ids": ("json", ids), "filled": ("json", filled)}
    path = tmp_path_factory.mktemp("fim") / "data"
    return write_mds(path, DOCUMENTS, shard_bytes=2_000, extra=extra)


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    rate=st.sampled_from([0.0, 0.5, 1.0]),
    spm_rate=st.sampled_from([0.0, 0.5, 1.0]),
    first=st.integers(0, 1 << 40),
)
def test_a_cut_moves_tokens_and_loses_none(
    sizes: list[int], rate: float, spm_rate: float, first: int
) -> None:
    rule = MiddleRule(rate, spm_rate, PREFIX, MIDDLE, SUFFIX, SEED)
    documents = np.arange(sum(sizes), dtype=np.int32)
    samples, counts = first + np.arange(len(sizes)), np.array(sizes)
    own = np.arange(0, len(sizes), 2)
    tokens, found = rule.fill(documents, counts, own, samples[own])
    assert found[own].tolist() == rule.lengthen(samples[own], counts[own]).tolist()
    parts = np.split(tokens, np.cumsum(found)[:-1])
    for index, before in enumerate(np.split(documents, np.cumsum(counts)[:-1])):
        after = parts[index].tolist()
        if len(after) == len(before):
            assert after == before.tolist()
            assert index % 2 or rate < 1 or not after
            continue
        assert index % 2 == 0
        assert rate > 0
        suffix = after.index(SUFFIX)
        middle = after.index(MIDDLE)
        assert after[0] == PREFIX
        assert 0 < suffix < middle
        if suffix == 1 and spm_rate:
            restored = after[middle + 1 :] + after[2:middle]
            if restored == before.tolist():
                continue
        assert spm_rate < 1
        restored = after[1:suffix] + after[middle + 1 :] + after[suffix + 1 : middle]
        assert restored == before.tolist()


def test_the_shares_of_cuts_are_those_that_were_asked_for() -> None:
    rule = MiddleRule(0.3, 0.5, PREFIX, MIDDLE, SUFFIX, SEED)
    samples, ones = np.arange(100_000), np.full(100_000, 4)
    longer = rule.lengthen(samples, ones)
    assert {*longer.tolist()} == {4, 7}
    assert 0.29 < (longer == 7).mean() < 0.31
    other = MiddleRule(0.3, 0.5, PREFIX, MIDDLE, SUFFIX, SEED + 1).lengthen(samples, ones)
    assert 0.4 < (longer != other).mean() < 0.44, "another seed cuts others"
    assert rule.lengthen(samples[:3], np.array([0, -1, -2])).tolist() == [0, -1, -2]
    tokens, sizes = rule.fill(np.zeros(400_000, np.int32), ones, samples, samples)
    starts = (np.cumsum(sizes) - sizes)[sizes == 7]
    assert 0.05 < (tokens[starts + 1] == SUFFIX).mean() - 0.5 < 0.2, "half of them, and empty ones"


def test_golden_cuts() -> None:
    """The rows of a run must stay the same in later versions."""
    found = [cut(sample, [1, 2, 3, 4, 5, 6], Fim(rate=1)) for sample in (0, 1, 2, 1 << 33)]
    names = {sentinel(name): name for name in "PMS"}
    assert ["".join(names.get(each, str(each)) for each in one) for one in found] == GOLDEN


GOLDEN = ["P1SM23456", "PS23456M1", "P1234S6M5", "PSM123456"]


@given(
    options=st.sampled_from(
        [
            {"packing": "concat"},
            {"packing": "best_fit", "open_rows": 3},
            {"packing": "one_per_row", "overflow": "rows"},
            {"min_tokens": 20},
        ]
    ),
    epochs=st.sampled_from([None, 2]),
)
@settings(max_examples=EXAMPLES)
def test_a_run_has_the_rows_of_the_plain_run_of_the_cut_documents(
    folder: str, options: dict[str, Any], epochs: int | None
) -> None:
    legs = [leg for leg in LEGS if epochs or leg.batches]
    options = {**OPTIONS, **options, "epochs": epochs}
    plain = run_legs(ranks(folder, tokens_key="filled", **options), legs)
    assert run_legs(ranks(folder, fim=FIM, **options), legs) == plain
    assert run_legs(ranks(folder, fim=FIM, tokens_key="ids", **options), legs) == plain


def test_a_resume_changes_no_row(folder: str) -> None:
    make = ranks(folder, fim=FIM, **OPTIONS, epochs=2, tail="pad")
    check_resume(make, global_batch=6, num_batches=8)


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_lengths_counted_without_cuts_serve_runs_with_cuts(
    folder: str, tmp_path: Path, packing: str
) -> None:
    out = str(tmp_path / "lengths")
    plain = count(folder, tokenizer=TOKENIZER, out=out)
    data = Stream(folder, fim=FIM)
    again = count_tokens(data, tokenizer=TOKENIZER, out=out, processes=1, progress=False)
    assert again is not None
    assert (again.tokens, again.counted_groups) == (plain.tokens, 0)
    options: dict[str, Any] = {**OPTIONS, "fim": FIM, "packing": packing, "epochs": 2}
    expected = run_legs(ranks(folder, **options, lengths="off", tail="pad"), [Leg(batches=None)])
    expected = [row for row in expected if row.spans]
    legs = [Leg(5, batches=1), Leg(7, batches=None)]
    counted = run_legs(ranks(folder, **options, lengths=out), legs)
    assert [row for row in counted if row.spans] == expected
    rows = Rows(folder, **options, lengths=out, seq_len=16, num_lanes=12)
    found = [tuple(row["input_ids"].tolist()) for row in rows]
    assert found == [row.input_ids for row in expected][: len(found)]
    assert len(found) >= len(expected) - 1
    with make_loader(folder, **options, lengths=out) as loader:
        loader.seek(len(found) // 2)
        [batch] = loader.take(1)
        assert [*map(tuple, batch["input_ids"].tolist())] == [
            row.input_ids for row in expected[len(found) // 2 :][:4]
        ]


def test_a_stream_has_its_own_cuts_and_a_state_holds_them(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    TOKENIZER.save(str(file))
    data = [
        Stream(folder, name="code", proportion=1),
        Stream(folder + "/", name="text", proportion=1, fim=None),
    ]
    options: dict[str, Any] = {**OPTIONS, "tokenizer": str(file), "fim": FIM}
    with make_loader(data, **options) as loader:
        batches = list(loader.take(20))
        state = loader.state_dict()
        [batch] = loader.take(1)
        traced = loader.trace(batch)
    marked = {
        int(batch.spans[index, 1])
        for batch in batches
        for index in range(len(batch.spans))
        if (batch["input_ids"][batch.spans[index, 0]] > 256).any()
    }
    assert marked == {0}
    assert str(state["fim"]) == "0.7/0.5/257/258/259,"
    assert [*trace_steps(open_run(state), range(21, 22), num_workers=0)] == [(21, traced)]
    for other in (Fim(rate=0.8), Fim(rate=0.7, spm_rate=0), None):
        with pytest.raises(StreamChangedError, match=r"fim \(shares and IDs .*saved '0.7/0.5/"):
            run_leg(ranks(data, **{**options, "fim": other}), Leg(), state)


@pytest.mark.parametrize(
    "names",
    [
        ("<fim-prefix>", "<fim-middle>", "<fim-suffix>"),
        ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
        ("<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜fim▁hole｜>"),  # noqa: RUF001
        ("▁<PRE>", "▁<MID>", "▁<SUF>"),
        ("<a>", "<b>", "<c>"),
    ],
)
def test_sentinels_are_found_by_family_or_given(folder: str, names: tuple[str, str, str]) -> None:
    tokenizer = with_sentinels(*names)
    own = dict(zip(("prefix", "middle", "suffix"), names, strict=True))
    given: list[dict[str, Any]] = [own, {"prefix": 257, "middle": 258, "suffix": 259}]
    given += [{}] if names[0] != "<a>" else []
    for options in given:
        with make_loader(folder, tokenizer=tokenizer, fim=Fim(**options)) as loader:
            assert loader.state_dict()["fim"] == "0.5/0.5/257/258/259"


def test_wrong_options_are_refused(folder: str) -> None:
    cases: list[tuple[Any, str]] = [
        (lambda: Fim(rate=1.5), r"rate of Fim is 1.5. Use a number from 0 to 1"),
        (lambda: Fim(spm_rate=True), "spm_rate of Fim is True"),
        (lambda: Fim(prefix="<a>"), "Set all three of them, or none"),
        (lambda: Stream(folder, fim=0.5), r"fim of .* is 0.5. Use Fim\(\)"),  # type: ignore[arg-type]
        (lambda: make_loader(folder, fim=0.5), r"fim is 0.5. Use Fim\(\), or None"),
    ]
    for make, message in cases:
        with pytest.raises(ValueError, match=message):
            make()
    wrong: list[tuple[Fim, str]] = [
        (Fim(), r"none of these: <fim_prefix>.*<｜fim▁begin｜>.*Pass Fim\(prefix"),  # noqa: RUF001
        (Fim(prefix="<no>", middle=1, suffix=2), "'<no>' in Fim is not a token"),
        (Fim(prefix=999, middle=1, suffix=2), "999 in Fim is not a token"),
        (Fim(prefix=1, middle=1, suffix=2), "Use three different tokens"),
    ]
    for fim, message in wrong:
        with pytest.raises(TokenizerError, match=message):
            make_loader(folder, fim=fim)


def test_conversations_are_not_cut(folder: str) -> None:
    with pytest.raises(ValueError, match="has both chat and fim"):
        Stream(folder, chat=Chat(), fim=Fim())
