"""A `row_hook` changes rows after packing: the same on any world, by index, and after a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, RowContext, Rows, export_rows
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.provenance import open_run, trace_steps
from cloudload.segments import IGNORED_LABEL
from cloudload.testing import Leg, Row, run_leg, run_legs
from testkit.awkward import few_legs, without_end
from testkit.corpora import EOS, byte_tokenizer, random_documents
from testkit.counted import write_counted
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader, ranks


def disturb(ids: Any, trained: Any, context: RowContext) -> None:
    """Replace some tokens by 7, and train only the replaced ones."""
    chosen = context.random.random(len(ids)) < 0.3
    ids[chosen] = 7
    trained &= chosen


def disturb_more(ids: Any, trained: Any, context: RowContext) -> None:  # noqa: ARG001
    ids[0] = context.row % 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("hooked") / "data"
    return write_counted(root, random_documents(1, 60), shard_bytes=2_000)


def disturbed(rows: list[Row], seed: int, first: int = 0) -> list[Row]:
    """The rows of a plain run, changed as `disturb` changes them."""
    found = []
    for number, row in enumerate(rows, first):
        size = sum(stop - start for *_, start, stop in row.spans)
        ids, trained = np.array(row.input_ids, np.int32), np.ones(size, np.bool_)
        if size:
            disturb(own := ids[:size], trained, RowContext(number, seed))
            ids[:size] = own
        labels = np.full(len(ids), IGNORED_LABEL)
        labels[:size] = np.where(trained, ids[:size], IGNORED_LABEL)
        found.append(Row(tuple(ids.tolist()), tuple(labels.tolist()), row.spans))
    return found


@given(
    packing=st.sampled_from(["concat", "best_fit", "one_per_row"]),
    epochs=st.sampled_from([None, 1]),
    lengths=st.sampled_from(["off", "auto"]),
    legs=few_legs(),
)
@settings(max_examples=EXAMPLES // 2)
def test_rows_are_those_of_the_plain_run_after_the_hook(
    folder: str, *, packing: str, epochs: int | None, lengths: str, legs: list[Leg]
) -> None:
    legs = legs if epochs else without_end(legs)
    options: dict[str, Any] = {"packing": packing, "epochs": epochs, "lengths": lengths, "seed": 5}
    plain = run_legs(ranks(folder, **options), legs)
    assert run_legs(ranks(folder, **options, row_hook=disturb), legs) == disturbed(plain, 5)


def test_rows_by_index_have_it_and_traces_show_the_row_before_it(
    folder: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"row_hook": disturb, "epochs": 1, "local": tmp_path / "cache"}
    with make_loader(folder, **options, batch_size=1) as loader:
        batches = list(loader.take(5))
        state = loader.state_dict()
        [following] = loader.take(1)
        spans = loader.trace(following)
    rows = Rows(folder, tokenizer=byte_tokenizer(), eos=EOS, seq_len=16, num_lanes=12, **options)
    for index, batch in enumerate(batches):
        assert rows[index]["input_ids"].tolist() == batch["input_ids"][0].tolist()
        assert rows[index]["labels"].tolist() == batch["labels"][0].tolist()
    run = open_run(state, tokenizer=byte_tokenizer())
    assert [*trace_steps(run, range(6, 7), num_workers=0)] == [(6, spans)]
    ids = byte_tokenizer().encode("".join(span.text for span in spans)).ids
    assert ids != following["input_ids"][0].tolist()


def test_a_state_holds_its_name(folder: str) -> None:
    _, states = run_leg(ranks(folder, row_hook=disturb), Leg())
    assert "disturb#" in states[-1]["row_hook"]
    for other in (None, disturb_more):
        with pytest.raises(StreamChangedError, match=r"row_hook: saved '.*disturb#"):
            run_leg(ranks(folder, row_hook=other), Leg(), states[-1])
        accepting = ranks(folder, row_hook=other, on_change={"row_hook": "accept"})
        run_leg(accepting, Leg(), states[-1])
    _, states = run_leg(ranks(folder, row_hook=disturb, row_hook_id="v1"), Leg())
    assert states[-1]["row_hook"] == "row_hook_id=v1"
    _, states = run_leg(ranks(folder), Leg())
    assert "row_hook" not in states[-1]


def test_an_export_has_the_changed_rows_or_is_refused(
    folder: str, tmp_path: Path, tokenizer_file: str, cli: Any
) -> None:
    options: dict[str, Any] = {"tokenizer": tokenizer_file, "local": tmp_path / "cache"}
    with make_loader(folder, **options, row_hook=disturb_more, epochs=1) as loader:
        state = loader.state_dict()
        expected = next(iter(loader))
        loader.load_state_dict(state)
        export_rows(loader, tmp_path / "rows", num_batches=1)
    again: dict[str, Any] = {"tokens_key": "tokens", "labels_key": "trained", "shuffle": False}
    again |= {"packing": "one_per_row", "num_canonical_nodes": 1, "eos": None, "epochs": 1}
    with make_loader(str(tmp_path / "rows"), **again, tokenizer=None) as loader:
        found = next(iter(loader))
    assert found["input_ids"].tolist() == expected["input_ids"].tolist()
    assert found["labels"].tolist() == expected["labels"].tolist()
    (tmp_path / "state.json").write_text(json.dumps(state))
    refused = cli(
        "export",
        tmp_path / "state.json",
        tmp_path / "again",
        "--steps=1",
        "--global-batch=4",
        status=1,
    )
    assert "the run has a row_hook, which a state does not store" in refused.err


def test_a_command_imports_it(folder: str, tokenizer_file: str, cli: Any) -> None:
    command = ["plan", "--data", folder, "--tokenizer", tokenizer_file, "--seq-len=16"]
    command += ["--batch-size=2", "--eos=none", "--epochs=1", "--row-hook"]
    assert cli(*command, f"{__name__}:disturb", "--json").out
    assert (
        "--row-hook 'missing:disturb' cannot be imported"
        in cli(*command, "missing:disturb", status=1).err
    )


def fail(*_: Any) -> None:
    raise KeyError("lost")


def leave_vocabulary(ids: Any, *_: Any) -> None:
    ids[2] = 5_000


def give_copies(ids: Any, is_trained: Any, _: Any) -> Any:
    return ids[::-1].copy(), is_trained


def give_later(ids: Any, *_: Any) -> Any:
    yield ids


def fold(ids: Any, *_: Any) -> None:
    ids.shape = (-1, 2)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (fail, r"(?s)row_hook failed on row \d+:.*KeyError: 'lost'.*Fix the function"),
        (give_copies, r"row_hook returned tuple for row \d+, .*Change the values .* in place"),
        (give_later, "row_hook returned generator for row"),
        (fold, r"row_hook changed the dtype or the shape of row \d+"),
        (leave_vocabulary, r"row_hook set token 2 of row \d+ to 5,000, which is not an ID from 0"),
    ],
)
def test_a_hook_that_fails_names_the_row(
    folder: str, hook: Any, message: str, num_workers: int
) -> None:
    with (
        make_loader(folder, row_hook=hook, num_workers=num_workers) as loader,
        pytest.raises(DatasetError, match=message),
    ):
        next(iter(loader))


def test_what_is_no_function_is_refused(folder: str) -> None:
    common: dict[str, Any] = {"tokenizer": byte_tokenizer(), "seq_len": 8, "batch_size": 1}
    with pytest.raises(ValueError, match=r"row_hook is 3\. Use a function"):
        CloudLoader(folder, **common, **dict[str, Any](row_hook=3))
    with pytest.raises(ValueError, match=r"row_hook_id is 'x'\. Use a name"):
        CloudLoader(folder, **common, row_hook_id="x")
