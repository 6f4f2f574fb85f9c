"""An option that changes on resume has no effect, takes effect at the next row, or is refused
unless the change is accepted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cloudload.errors import StreamChangedError
from cloudload.provenance import open_run
from cloudload.testing import Leg, Row, run_leg
from testkit import loaders
from testkit.awkward import tokenize
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds

COUNT = 60


@pytest.fixture(scope="module")
def folder(module_folder: Path) -> Path:
    texts = random_documents(1, COUNT)
    extra = {"other": ("str", [text.upper() for text in texts])}
    write_mds(module_folder / "mds", texts, shard_bytes=2_000, extra=extra)
    return module_folder


def shout(sample: dict[str, Any]) -> str:
    return str(sample["text"]).upper()


def whisper(sample: dict[str, Any]) -> str:
    return str(sample["text"]).lower()


class Keeper:
    """A transform that keeps the first `number` words of a document."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, sample: dict[str, Any]) -> str:
        return " ".join(str(sample["text"]).split()[: self.number])


def ranks(
    folder: Path, on_change: dict[str, str] | None = None, data: Any = None, **settings: Any
) -> Any:
    settings = {"num_lanes": 6, "local": folder / "cache", **settings}
    return loaders.ranks(data or folder / "mds", on_change=on_change, **settings)


def documents_in(rows: list[Row]) -> Counter[tuple[int, int]]:
    """Count how often each document (epoch, sample) begins in the rows."""
    spans = [span for row in rows for span in row.spans]
    return Counter((epoch, sample) for _, epoch, sample, start, _ in spans if start == 0)


@pytest.mark.parametrize(
    ("packing", "field", "before", "after"),
    [
        ("best_fit", "open_rows", 5, 2),
        ("best_fit", "open_rows", 1, 7),
        ("concat", "min_tokens", 0, 40),
        ("best_fit", "min_tokens", 0, 40),
        ("concat", "max_tokens", None, 60),
        ("best_fit", "max_tokens", None, 60),
        ("one_per_row", "max_tokens", None, 60),
        ("concat", "epochs", 1, 2),
        ("best_fit", "epochs", None, 1),
        ("one_per_row", "epochs", 2, 1),
    ],
)
def test_a_harmless_change_is_refused_or_taken_on_purpose_and_then_loses_nothing(
    folder: Path, packing: str, field: str, before: Any, after: Any
) -> None:
    settings: dict[str, Any] = {"packing": packing, "epochs": 1, field: before, "overflow": "rows"}
    first, states = run_leg(ranks(folder, **settings), Leg(2, batch_size=6, batches=3))
    with pytest.raises(
        StreamChangedError,
        match=rf"{field}: saved {before}, found {after}\n.*on_change=.*'{field}': 'accept'",
    ):
        run_leg(ranks(folder, **{**settings, field: after}), Leg(), states[-1])
    changed = ranks(folder, {field: "accept"}, **{**settings, field: after})
    last = run_leg(changed, Leg(3, batch_size=4, batches=None), states[-1])[0]
    begun = documents_in(first + last)
    epochs = after if field == "epochs" else 1
    wanted = Counter({(epoch, sample): 1 for epoch in range(epochs) for sample in range(COUNT)})
    if field in ("min_tokens", "max_tokens"):
        lengths = [len(tokenize(text)) + 1 for text in random_documents(1, COUNT)]
        read, least, most = documents_in(first), 0, after
        if field == "min_tokens":
            least, most = after, max(lengths)
        wanted = Counter(
            each for each in wanted if each in read or least <= lengths[each[1]] <= most
        )
        assert 10 < len(wanted) < COUNT
        # best_fit keeps the documents that it had already put into open rows
        assert all(document in wanted or packing == "best_fit" for document in begun)
        assert wanted <= begun
        return
    assert begun == wanted


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        ("text_key", {"text_key": "text"}, {"text_key": "other"}),
        ("transform", {}, {"transform": shout}),
        ("bos_eos", {"eos": EOS}, {"eos": None}),
    ],
)
def test_another_content_is_taken_on_purpose_at_the_ends_of_documents(
    folder: Path, packing: str, field: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"packing": packing, "overflow": "rows", "epochs": 1}
    first, states = run_leg(ranks(folder, **settings, **before), Leg(2, batch_size=5, batches=3))
    with pytest.raises(StreamChangedError, match=rf"{field}.*: saved"):
        run_leg(ranks(folder, **settings, **after), Leg(), states[-1])
    changed = ranks(folder, {field: "accept"}, **settings, **after)
    last, _ = run_leg(changed, Leg(3, batch_size=4, batches=None), states[-1])
    begun = documents_in(first + last)
    assert max(begun.values()) == 1, "no document may be read twice"
    assert not documents_in(first) & documents_in(last)
    lost = COUNT - len(begun)
    assert lost == 0 if packing != "best_fit" else lost < COUNT / 2, (
        "only documents that best_fit had not emitted may be left out"
    )
    tokens = {token for row in last for token in row.input_ids}
    letters = {tokenize(letter)[0] for letter in "abcdefghijklmnopqrstuvwxyz"}
    assert bool(tokens & letters) == (field == "bos_eos")


def test_republished_data_with_the_same_documents_per_shard_can_be_accepted(tmp_path: Path) -> None:
    texts = random_documents(1, COUNT)
    write_mds(tmp_path / "mds", texts, shard_samples=[20, 25, 15])
    write_mds(tmp_path / "fixed", [text + "!" for text in texts], shard_samples=[20, 25, 15])
    write_mds(tmp_path / "cut again", texts, shard_samples=[20, 20, 20])
    _, states = run_leg(ranks(tmp_path), Leg(2, batch_size=5))
    fixed, cut_again = tmp_path / "fixed", tmp_path / "cut again"
    with pytest.raises(StreamChangedError, match=r"data .*: saved"):
        run_leg(ranks(tmp_path, data=fixed), Leg(), states[-1])
    run_leg(ranks(tmp_path, {"data": "accept"}, fixed), Leg(batches=9), states[-1])
    refused = r"shards \(fingerprints of the shards' sample counts.*: saved"
    with pytest.raises(StreamChangedError, match=refused):
        run_leg(ranks(tmp_path, {"data": "accept"}, cut_again), Leg(), states[-1])


def test_a_transform_is_known_by_its_name_and_its_source(folder: Path) -> None:
    _, states = run_leg(ranks(folder, transform=shout), Leg())
    run_leg(ranks(folder, transform=shout), Leg(), states[-1])
    for other, found in ((whisper, r"'.*whisper#\w+'"), (None, "None")):
        refused = rf"transform: saved '.*shout#\w+', found {found}"
        with pytest.raises(StreamChangedError, match=refused):
            run_leg(ranks(folder, transform=other), Leg(), states[-1])


def test_a_transform_is_known_by_its_values_or_by_the_id_it_was_given(folder: Path) -> None:
    rows, states = run_leg(ranks(folder, transform=Keeper(9)), Leg())
    with pytest.raises(StreamChangedError, match=r"transform: saved '.*Keeper#\w+', found '.*Ke"):
        run_leg(ranks(folder, transform=Keeper(4)), Leg(), states[-1])
    again, states = run_leg(ranks(folder, transform=Keeper(9), transform_id="nine"), Leg())
    assert again == rows
    assert states[-1]["transform"] == "transform_id=nine"
    run_leg(ranks(folder, transform=Keeper(9), transform_id="nine"), Leg(), states[-1])
    with pytest.raises(StreamChangedError, match="saved 'transform_id=nine', found 'transform_id"):
        run_leg(ranks(folder, transform=Keeper(9), transform_id="ten"), Leg(), states[-1])
    run = open_run(states[-1], tokenizer=byte_tokenizer(), transform=Keeper(9))
    with run.loader(batch_size=1, dp_rank=0, dp_world_size=1, num_workers=0) as loader:
        assert loader.rows == states[-1]["rows"]
    with pytest.raises(ValueError, match=r"transform_id is 'nine'\. Use a name"):
        run_leg(ranks(folder, transform_id="nine"), Leg())


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
def test_a_run_that_has_ended_is_not_extended_and_the_refusal_says_why(
    folder: Path, packing: str
) -> None:
    settings: dict[str, Any] = {"packing": packing, "overflow": "rows"}
    rows, states = run_leg(ranks(folder, epochs=1, **settings), Leg(batch_size=6, batches=None))
    longer = ranks(folder, {"epochs": "accept"}, epochs=2, **settings)
    advice = r"epochs: .* or after its end\. From row [\d,]+ on"
    with pytest.raises(StreamChangedError, match=advice) as refusal:
        run_leg(longer, Leg(), states[-1])
    first = int(str(refusal.value).split("From row ")[1].split(" on")[0].replace(",", ""))
    before = [state for state in states if state["rows"] <= first and not state["tail"]][-1]
    more, _ = run_leg(longer, Leg(batch_size=6, batches=None), before)
    begun = documents_in(rows[: before["rows"]] + more)
    assert begun == {(epoch, sample): 1 for epoch in range(2) for sample in range(COUNT)}


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("change", [{"seq_len": 24}, {"min_tokens": 4}])
@pytest.mark.parametrize("way", ["seek", "exchange_every"])
def test_the_advice_for_a_state_whose_cursors_are_behind_works(
    folder: Path, packing: str, change: dict[str, Any], way: str
) -> None:
    accepted = dict.fromkeys({*change} - {"seq_len"}, "accept")
    changed = ranks(folder, accepted, packing=packing, **change)
    saved = ranks(folder, packing=packing)
    with saved(exchange_every=3 if way == "exchange_every" else 1) as loader:
        if way == "seek":
            loader.seek(40)
        else:
            list(loader.take(4))
        behind = loader.state_dict()
    advice = "Load it with the saved values and exchange_every=1, take one batch, and save"
    with changed() as loader, pytest.raises(StreamChangedError, match=advice):
        loader.load_state_dict(behind)
    with saved(exchange_every=1) as loader:
        loader.load_state_dict(behind)
        next(iter(loader))
        state = loader.state_dict()
    with changed() as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).rows[0] == state["rows"] == behind["rows"] + 4
