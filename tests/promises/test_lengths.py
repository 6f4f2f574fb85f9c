"""Token lengths save work, but never change a row, a batch, a state, or a statistic."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import Chat, Rows, Stream
from cloudload.errors import CloudloadError, DatasetError
from cloudload.tools.count import count_tokens
from testkit.conversations import chat_tokenizer, conversations, write_conversations
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.counted_runs import (
    CASES,
    SHARES,
    Shares,
    keep_most,
    options_of,
    raise_unexpected,
    streams_of,
)
from testkit.examples import EXAMPLES
from testkit.loaders import ids_of, make_loader
from testkit.state_fields import without


@given(
    case=CASES,
    shares=SHARES,
    seq_lens=st.sampled_from([(16, 16), (16, 50), (90, 33)]),
    moves=st.tuples(st.integers(0, 6), st.sampled_from([0, 1, 7, 60, 400]), st.integers(1, 3)),
)
@settings(max_examples=EXAMPLES)
def test_a_seek_with_lengths_gives_the_rows_the_state_and_the_statistics_that_reading_gives(
    corpora: list[Path],
    case: dict[str, Any],
    shares: Shares,
    seq_lens: tuple[int, int],
    moves: tuple[int, int, int],
) -> None:
    """Save a run's state, resume it with another `seq_len`, seek, and compare the next rows."""
    before, distance, after = moves
    options = options_of(case, shares)
    data = streams_of(corpora, shares, case)
    first = make_loader(data, seq_len=seq_lens[0], lengths="off", **options)
    try:
        list(first.take(before))
        state = first.state_dict()
        found = []
        for lengths in ("off", "require"):
            loader = make_loader(data, seq_len=seq_lens[1], lengths=lengths, **options)
            loader.load_state_dict(state)
            loader.seek(loader.rows + distance)
            rows = ids_of(loader.take(after))
            saved = without(loader.state_dict(), "version", "sources")
            found.append((rows, saved, loader.stats().as_dict()))
    except CloudloadError as error:
        raise_unexpected(error)
        return
    except ValueError as error:  # a seek to a row after the end
        if not re.match(r"rows is .*, but the run has .* rows", str(error)):
            raise
        return
    (rows, saved, stats), (rows_of_lengths, saved_of_lengths, stats_of_lengths) = found
    assert rows_of_lengths == rows
    if rows and saved["tail"]:
        # without lengths, a seek whose next batch is in the tail does not count the skipped
        # documents
        assert {**saved_of_lengths, "counts": ""} == {**saved, "counts": ""}
    elif rows:
        assert saved_of_lengths == saved
        assert drop_delivery(stats_of_lengths) == drop_delivery(stats)


def drop_delivery(stats: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stats.items() if not name.startswith("delivery/")}


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_the_states_before_a_skip_with_lengths_are_those_of_reading(
    corpora: list[Path], packing: Any, number: int
) -> None:
    skipping, reading = (
        make_loader(corpora[2], packing=packing, lengths=lengths) for lengths in ("require", "off")
    )
    for loader in (skipping, reading):
        list(loader.take(1))
        loader.skip(number)
    for lag in range(min(number, 3) + 1):
        assert skipping.state_dict(lag) == reading.state_dict(lag)
    back = reading.rows - 4
    for loader in (skipping, reading):
        loader.set_world(0, 1, rows=back)
        assert loader.rows == back


def test_a_seek_of_100_000_rows_reads_a_few_documents(
    corpora: list[Path], samples_read: list[int]
) -> None:
    loader = make_loader(str(corpora[1]), lengths="require")
    loader.seek(100_000)
    assert not samples_read
    next(iter(loader))
    assert len(samples_read) < 500
    assert loader.stats().documents > 8_000


def test_skipped_batches_are_not_read_and_leave_the_state_that_reading_leaves(
    counted_folder: str, samples_read: list[int]
) -> None:
    states = []
    for lengths in ("off", "require"):
        loader = make_loader(counted_folder, lengths=lengths)
        list(loader.take(2))
        loader.close()
        samples_read.clear()
        loader.skip(300)
        states.append(without(loader.state_dict(), "version", "sources"))
        loader.close()
    assert not samples_read
    assert states[0] == states[1]


def test_a_state_between_exchanges_is_resumed_without_reading_its_batches_again(
    counted_folder: str, samples_read: list[int]
) -> None:
    loader = make_loader(counted_folder, exchange_every=50, lengths="off", batch_size=12)
    list(loader.take(99))
    state = loader.state_dict()
    expected = ids_of(loader.take(3))
    loader.close()
    numbers = []
    for lengths in ("off", "require"):
        again = make_loader(counted_folder, exchange_every=50, lengths=lengths, batch_size=12)
        again.load_state_dict(state)
        samples_read.clear()
        assert ids_of(again.take(3)) == expected
        numbers.append(len(samples_read))
    assert numbers[1] < numbers[0] / 2


def test_the_length_of_a_finite_run_is_known(corpora: list[Path]) -> None:
    packings = ("concat", "best_fit", "one_per_row")
    for packing, tail in (*((each, "pad") for each in packings), ("concat", "drop")):
        options: dict[str, Any] = {"packing": packing, "tail": tail, "epochs": 3}
        loader = make_loader([str(folder) for folder in corpora], lengths="require", **options)
        assert len(loader) == len(list(loader))


@pytest.mark.parametrize("packing", ["concat", "best_fit", "cut", "rows"])
def test_the_batches_of_an_epoch_are_counted_for_any_loader(
    corpora: list[Path], packing: Any
) -> None:
    options = {"packing": packing}
    if packing in ("cut", "rows"):
        options = {"packing": "one_per_row", "overflow": packing}
    data = [Stream(str(corpora[0]), repeat=3), Stream(str(corpora[1]), choose=25)]
    for epochs in (1, 3):
        expected = len(list(make_loader(data, lengths="off", epochs=epochs, **options)))
        for other in ({}, {"epochs": 7}, {"stop_every": 5}):
            loader = make_loader(data, lengths="require", **other, **options)
            assert loader.count_batches(epochs) == expected


def test_without_lengths_the_batches_of_an_epoch_are_not_known(corpora: list[Path]) -> None:
    one_each = make_loader(str(corpora[1]), lengths="off", packing="one_per_row", batch_size=3)
    assert one_each.count_batches(2) == -(-2 * 40 // 3)
    with pytest.raises(ValueError, match="batches in an epoch is unknown"):
        make_loader(str(corpora[1]), lengths="off").count_batches()
    with pytest.raises(ValueError, match="epochs is 0"):
        make_loader(str(corpora[1])).count_batches(0)


def shorten(sample: dict[str, Any]) -> str | None:
    """A transform like `keep_most` that also drops the first byte of document 33."""
    text = keep_most(sample)
    return text[1:] if text is not None and text.startswith("33:") else text


def test_a_document_that_has_another_length_than_was_counted_is_named(tmp_path: Path) -> None:
    documents = random_documents(0, 50)
    write_mds(tmp_path, documents)
    # the same ID for two transforms, as if the code that one of them calls had changed
    settings = {"tokenizer": byte_tokenizer(), "transform_id": "mine"}
    count_tokens(tmp_path, transform=keep_most, processes=1, progress=False, **settings)
    size = len(documents[33].encode())
    expected = rf"sample 33 .* has {size} tokens in the token lengths, but now has {size - 1} "
    loader = make_loader(str(tmp_path), transform=shorten, lengths="require", **settings)
    with pytest.raises(DatasetError, match=expected):
        list(loader.take(50))
    list(make_loader(str(tmp_path), transform=shorten, lengths="off", **settings).take(50))


def test_lengths_elsewhere_serve_data_that_is_read_only(tmp_path: Path) -> None:
    write_mds(tmp_path / "data", random_documents(0, 50))
    out = str(tmp_path / "elsewhere")
    count_tokens(
        tmp_path / "data", tokenizer=byte_tokenizer(), out=out, processes=1, progress=False
    )
    names = sorted(each.name for each in (tmp_path / "data").iterdir())
    assert names == ["index.json", "shard.00000.mds"]
    loader = make_loader(str(tmp_path / "data"), lengths=out, epochs=1)
    assert len(loader) == len(list(loader))


@pytest.mark.parametrize("limits", [[160], [160, 96]])
def test_a_resume_with_another_seq_len_uses_the_lengths_of_the_limit_that_its_run_keeps(
    tmp_path: Path, limits: list[int]
) -> None:
    folder = write_conversations(tmp_path / "data", conversations(60))
    tokenizer = chat_tokenizer()
    filtered = []
    for limit in limits:
        report = count_tokens(
            folder, tokenizer=tokenizer, chat=Chat(max_tokens=limit), progress=False
        )
        assert report is not None
        filtered.append(report.filtered)
    assert len({*filtered}) == len(limits)
    options: dict[str, Any] = {"tokenizer": tokenizer, "eos": "auto", "chat": Chat(), "epochs": 1}
    with make_loader(folder, **options, seq_len=160) as loader:
        next(iter(loader))
        state = loader.state_dict()
    found = []
    for lengths in ("off", "auto"):
        with make_loader(folder, **options, seq_len=96, lengths=lengths, tail="pad") as loader:
            loader.load_state_dict(state)
            assert lengths == "off" or len(loader) > 0
            found.append(ids_of(loader))
    assert found[0] == found[1]
    rows = Rows(folder, **options, num_lanes=12, seq_len=96, lengths="auto", state=state)
    delivered = [row for batch in found[0] for row in batch]
    expected = delivered[: len(rows) - rows.first_row]
    assert [rows[row]["input_ids"].tolist() for row in range(rows.first_row, len(rows))] == expected
