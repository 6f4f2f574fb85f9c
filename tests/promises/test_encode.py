"""A run whose tokens a function makes has the rows of the plain run of the same tokens.

The tokens depend on random numbers, so they must have the same key in each world, at each resume,
in `Rows`, in traces, and in counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, EncodeContext, Rows, Stream, TokenIds
from cloudload.errors import DatasetError, StreamChangedError, TokenizerError
from cloudload.provenance import open_run, trace_steps
from cloudload.run import lengths_index
from cloudload.testing import Leg, check_resume, run_leg, run_legs
from testkit.awkward import few_legs, without_end
from testkit.conversations import chat_tokenizer
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds
from testkit.counted import count
from testkit.examples import EXAMPLES, PACKINGS
from testkit.loaders import make_loader, ranks

TOKENIZER = byte_tokenizer()
SEED = 17
DOCUMENTS = random_documents(3, 60)
LEGS = [Leg(2, batches=3), Leg(3, workers=2, batches=2), Leg(1, batch_size=5, batches=None)]


def scramble(sample: dict[str, Any], context: EncodeContext) -> TokenIds | None:
    """Keep a random part of the tokens, and train a random part of these."""
    ids = context.tokenize(sample["text"])
    ids = ids[: max(0, int(context.random.integers(-5, len(ids) + 1)))]
    if len(ids) % 7 == 3:
        return None
    return TokenIds(ids, trained=context.random.random(len(ids)) < 0.7)


def spell(sample: dict[str, Any], _context: EncodeContext) -> TokenIds:
    """The bytes of the text."""
    return TokenIds([*sample["text"].encode()])


def expected(sample: int, text: str, seed: int = SEED) -> TokenIds | None:
    """What `scramble` makes of a sample, without a loader."""
    context = EncodeContext("any", sample, seed, lambda text: np.array(TOKENIZER.encode(text).ids))
    return scramble({"text": text}, context)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents, and columns of the tokens that `scramble` makes of them.

    A sample that is left out has one token, which is not trained.
    """
    made = [expected(sample, text) for sample, text in enumerate(DOCUMENTS)]
    assert None in made
    assert any(each and not len(each.ids) for each in made)
    ids = [[1] if each is None else np.asarray(each.ids).tolist() for each in made]
    masks = [[0] if each is None else (np.asarray(each.trained) * 1).tolist() for each in made]
    extra: dict[str, Any] = {"ids": ("json", ids), "mask": ("json", masks)}
    path = tmp_path_factory.mktemp("encode") / "data"
    return write_mds(path, DOCUMENTS, shard_bytes=2_000, extra=extra)


COLUMNS: dict[str, Any] = {"tokens_key": "ids", "labels_key": "mask"}


@given(
    packing=st.sampled_from(PACKINGS),
    epochs=st.sampled_from([None, 1, 2]),
    legs=few_legs(),
    more=st.sampled_from([{}, {"row_bos": 7, "eos": None}, {"min_tokens": 20}, {"bos": 5}]),
)
@settings(max_examples=EXAMPLES)
def test_a_run_has_the_rows_of_the_plain_run_of_its_tokens(
    folder: str,
    *,
    packing: dict[str, Any],
    epochs: int | None,
    legs: list[Leg],
    more: dict[str, Any],
) -> None:
    legs = legs if epochs else without_end(legs)
    options = {**packing, **more, "epochs": epochs, "lengths": "off"}
    plain = run_legs(ranks(folder, **COLUMNS, **options), legs)
    assert run_legs(ranks(folder, encode=scramble, **options), legs) == plain


def test_a_resume_changes_no_row(folder: str) -> None:
    make = ranks(folder, encode=scramble, epochs=2, tail="pad")
    check_resume(make, global_batch=6, num_batches=8)


def test_random_numbers_depend_on_neither_the_streams_nor_their_names(
    folder: str, tmp_path: Path
) -> None:
    other = write_mds(tmp_path / "other", ["x" * 40] * 30)
    alone = [Stream(folder, name="a", proportion=1, encode=scramble)]
    mixed = [
        Stream(other, name="other", proportion=1),
        Stream(folder, name="b", proportion=1, encode=scramble, eos=None),
    ]
    documents: list[dict[int, list[int]]] = []
    for data, stream in ((alone, 0), (mixed, 1)):
        options: dict[str, Any] = {"packing": "best_fit", "seq_len": 300, "eos": None}
        rows = run_legs(ranks(data, **options), [Leg(2, batches=20)])
        found: dict[int, list[int]] = {}
        for row in rows:
            first = 0
            for owner, _, sample, start, stop in row.spans:
                if owner == stream:
                    found[sample] = list(row.input_ids[first : first + stop - start])
                first += stop - start
        documents.append(found)
    both = documents[0].keys() & documents[1].keys()
    assert len(both) > 20
    assert all(documents[0][sample] == documents[1][sample] for sample in both)


@pytest.mark.parametrize("packing", PACKINGS)
def test_counts_rows_by_index_and_traces_agree_with_the_loader(
    folder: str,
    tmp_path: Path,
    packing: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lengths_index, "GROUP_SAMPLES", 10)  # several groups of shards
    out = str(tmp_path / "lengths")
    report = count(folder, encode=scramble, out=out)
    of_columns = count(folder, **COLUMNS, out=str(tmp_path / "plain"))
    assert report.groups > 2
    assert (report.documents, report.empty) == (of_columns.documents, of_columns.empty)
    assert report.filtered == of_columns.filtered > 0
    options: dict[str, Any] = {**packing, "encode": scramble, "epochs": 1, "lengths": out}
    plain = run_legs(ranks(folder, **COLUMNS, **packing, epochs=1), [Leg(batches=None)])
    counted = run_legs(ranks(folder, **options), [Leg(5, batches=1), Leg(7, batches=None)])
    assert [row for row in counted if row.spans] == [row for row in plain if row.spans]
    of_loader = {"tokenizer": TOKENIZER, "eos": EOS, "seq_len": 16, "num_lanes": 12}
    rows = Rows(folder, **of_loader, **options)
    found = [(tuple(each["input_ids"].tolist()), tuple(each["labels"].tolist())) for each in rows]
    assert found == [(row.input_ids, row.labels) for row in plain][: len(found)]
    ids = found[0][0][: sum(span.stop - span.start for span in rows.trace(0))]
    text = "".join(span.text for span in rows.trace(0))
    assert text == TOKENIZER.decode([*ids], skip_special_tokens=False)


def test_a_count_belongs_to_a_seed_and_to_the_place_of_its_shards(
    folder: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "lengths")
    count(folder, encode=scramble, seed=4, out=out)
    options: dict[str, Any] = {"encode": scramble, "epochs": 1, "lengths": "require"}
    options["lengths"] = out
    with make_loader(folder, **options, seed=4) as loader:
        assert len(loader) > 0
    with pytest.raises(DatasetError, match="none for this tokenizer"):
        make_loader(folder, **options, seed=5)


def test_another_function_or_seed_is_refused_by_name(folder: str) -> None:
    _, states = run_leg(ranks(folder, encode=scramble), Leg(batches=2))
    state = states[-1]
    assert str(state["encode"]).startswith(f"{__name__}.scramble#")
    for options, message in (
        ({"encode": spell}, r"encode .*: saved '.*scramble#\w+', found '.*spell#\w+'"),
        ({"encode": scramble, "encode_id": "v2"}, r"encode .*saved '.*', found 'encode_id=v2'"),
        ({}, r"encode .*saved '.*scramble#\w+', found ''"),
        ({"encode": scramble, "seed": 5}, "seed: saved 17, found 5"),
    ):
        with pytest.raises(StreamChangedError, match=message):
            run_leg(ranks(folder, **options), Leg(), state)
    accepting = ranks(folder, encode=spell, on_change={"encode": "accept"})
    run_leg(accepting, Leg(), state)


def test_an_accepted_change_to_text_does_not_keep_the_eos_of_the_function(folder: str) -> None:
    options: dict[str, Any] = {"tokenizer": chat_tokenizer(), "eos": "auto"}
    _, states = run_leg(ranks(folder, encode=spell, **options), Leg(batches=2))
    assert states[-1]["bos_eos"] == "None/None"
    accepted = {"encode": "accept"}
    with pytest.raises(StreamChangedError, match=r"bos_eos .*saved 'None/None', found"):
        run_leg(ranks(folder, **options, on_change=accepted), Leg(), states[-1])
    accepted["bos_eos"] = "accept"
    run_leg(ranks(folder, **options, on_change=accepted), Leg(), states[-1])


def test_streams_with_functions_can_be_added_to_a_run(folder: str) -> None:
    data = [Stream(folder, name="a", proportion=1, encode=scramble)]
    _, states = run_leg(ranks(data), Leg(batches=2))
    more = [*data, Stream(folder, name="b", proportion=1, encode=scramble)]
    run_leg(ranks(more), Leg(2, batches=2), states[-1])


@pytest.mark.parametrize("name", [None, "a,b%2C"])
def test_a_state_reopens_its_run(folder: str, tmp_path: Path, name: str | None) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    TOKENIZER.save(str(tokenizer))
    options: dict[str, Any] = {"encode": scramble, "encode_id": name, "tokenizer": str(tokenizer)}
    with make_loader(folder, **options) as loader:
        list(loader.take(1))
        state = loader.state_dict()
        [batch] = loader.take(1)
        traced = loader.trace(batch)
    with pytest.raises(ValueError, match=r"the run used the encode .*\(--encode\)"):
        open_run(state)
    for function in (scramble, f"{__name__}:scramble"):
        run = open_run(state, encode=function)
        assert [*trace_steps(run, range(2, 3), num_workers=0)] == [(2, traced)]


def test_a_function_needs_no_tokenizer(folder: str) -> None:
    with make_loader(folder, encode=spell, tokenizer=None, eos=256) as loader:
        [batch] = loader.take(1)
        ids = [each for each in batch["input_ids"].flatten().tolist() if each != 256]
        assert {*ids} <= {*"".join(DOCUMENTS).encode()}
        assert loader.state_dict()["tokenizer"] == "none"
    with (
        make_loader(folder, encode=scramble, tokenizer=None, eos=256) as loader,
        pytest.raises(DatasetError, match=r"context.tokenize needs a tokenizer.*Pass tokenizer"),
    ):
        list(loader.take(1))


def test_a_function_gets_arrays_and_encodes_special_tokens_if_asked(tmp_path: Path) -> None:
    codes = [np.arange(each + 1, dtype=np.uint16) for each in range(4)]
    folder = write_mds(
        tmp_path / "d",
        [EOS] * 4,
        extra={"codes": ("ndarray:uint16", codes)},
    )
    seen = []

    def look(sample: dict[str, Any], context: EncodeContext) -> TokenIds:
        seen.append((context.stream, context.sample, sample["codes"]))
        special = context.tokenize(sample["text"], special_tokens=True)
        assert len(special) == 1 < len(context.tokenize(sample["text"]))
        return TokenIds(sample["codes"] + 1)

    options: dict[str, Any] = {"shuffle": False, "epochs": 1, "num_lanes": 1, "tail": "pad"}
    options |= {"seq_len": 10, "batch_size": 1, "eos": None}
    with make_loader(folder, encode=look, encode_id="look", **options) as loader:
        [batch] = loader
    assert batch["input_ids"].tolist() == [[1, 1, 2, 1, 2, 3, 1, 2, 3, 4]]
    for index, (stream, sample, code) in enumerate(seen[:4]):
        assert (stream, sample, code.dtype) == ("d", index, np.uint16)
        assert np.array_equal(code, codes[index])


RESULTS: list[tuple[Any, str]] = [
    (lambda _: [1, 2], r"returned list for sample \d+ of .*Return TokenIds"),
    (lambda _: "text", "returned str for"),
    (lambda _: TokenIds([1, 70_000]), r"returned the ID 70,000 at token 1 for .*from 0 to "),
    (lambda _: TokenIds([1, -1]), "ids has -1 at index 1"),
    (lambda _: TokenIds([0, (1 << 31) - 1]), r"ids has 2147483647 at index 1\..*to 2,147,483,646"),
    (lambda _: TokenIds([0.5]), "ids has the dtype float64"),  # type: ignore[list-item]
    (lambda _: TokenIds([[1], [2]]), "2 axes"),  # type: ignore[list-item]
    (lambda _: TokenIds([1, 2], trained=[True]), r"shape \[1\], but there are 2 token IDs"),
    (lambda _: TokenIds([1, 2], trained=[0, 5]), r"trained has .*5.*Use True"),  # type: ignore[list-item]
    (lambda sample: sample["absent"], "KeyError"),
]


@pytest.mark.parametrize(("make", "message"), RESULTS)
def test_a_bad_result_is_named_and_can_be_skipped(tmp_path: Path, make: Any, message: str) -> None:
    def encode(sample: dict[str, Any], context: EncodeContext) -> TokenIds:
        made: TokenIds = make(sample) if context.sample == 5 else TokenIds([9, 9])
        return made

    extra: dict[str, Any] = {"id": ("str", [f"doc-{index}" for index in range(8)])}
    folder = write_mds(tmp_path / "d", ["text"] * 8, extra=extra)
    options: dict[str, Any] = {"encode": encode, "encode_id": "bad", "epochs": 1, "num_lanes": 1}
    with (
        make_loader(folder, **options) as loader,
        pytest.raises(DatasetError, match=r"(?s)encode .*sample 5 of .*\(id 'doc-5'\)") as caught,
    ):
        list(loader)
    assert caught.match(f"(?s){message}")
    assert caught.match("on_error='skip'")
    with make_loader(folder, **options, on_error="skip", tail="pad") as loader:
        list(loader)
        assert (loader.stats().documents, loader.stats().failed) == (7, 1)


def test_what_may_depend_on_the_machine_is_never_skipped(folder: str) -> None:
    def fail(_sample: dict[str, Any], _context: EncodeContext) -> TokenIds:
        raise TokenizerError("no model")

    options: dict[str, Any] = {"encode": fail, "on_error": "skip"}
    with (
        make_loader(folder, **options) as loader,
        pytest.raises(DatasetError, match=r"on_error='skip' does not apply.*TokenizerError"),
    ):
        next(iter(loader))


def test_options_that_contradict_each_other_are_refused(folder: str) -> None:
    url = folder
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tokens_key": "ids"}, "encode and tokens_key are both set"),
        ({"transform": str}, "encode and transform are both set"),
        ({"encode_id": ""}, "encode_id is ''"),
        ({"strip_tokens": [1]}, "strip_tokens is .* text or made by encode"),
        ({"encode": "tokens"}, "encode is 'tokens'. Use a function"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            make_loader(url, **{"encode": scramble, **options})
    for options, message in (
        ({"tokens_key": "ids"}, "has both tokens_key and encode"),
        ({"transform": str}, "has both transform and encode"),
        ({"text_key": "text"}, "has both encode and text_key"),
    ):
        with pytest.raises(ValueError, match=message):
            Stream(url, encode=scramble, **options)
    with pytest.raises(ValueError, match=r"encode_id of .* is 'v1'"):
        Stream(url, encode_id="v1")
    with pytest.raises(ValueError, match="encode applies to no stream"):
        CloudLoader(Stream(url, text_key="text"), encode=scramble, seq_len=8, tokenizer=TOKENIZER)
