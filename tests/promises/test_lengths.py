"""Token lengths save work, but never change a row, a batch, a state, or a statistic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import Stream
from cloudload.errors import CloudloadError, DatasetError
from cloudload.loading.workers.document_reader import DocumentReader
from cloudload.tools.count import count_tokens
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader

SIZES = (3, 40, 150)


def keep_most(sample: dict[str, Any]) -> str | None:
    """A transform that filters out about a fifth of the documents."""
    text = str(sample["text"])
    return None if text.startswith(("1", "7")) else text


def fail_on_some(sample: dict[str, Any]) -> str | None:
    """A transform like `keep_most` that also fails on about a tenth of the documents."""
    if str(sample["text"]).startswith("3"):
        raise ValueError("a bad document")
    return keep_most(sample)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Datasets of 3, 40, and 150 documents, one of which is empty. Their lengths are counted with
    no transform, with `keep_most`, and with `fail_on_some`."""
    root, made = tmp_path_factory.mktemp("lengths"), []
    for number, size in enumerate(SIZES):
        documents = random_documents(number, size, max_words=30 * (number + 1))
        documents[size // 2] = ""
        write_mds(root / f"of-{size}", documents, shard_bytes=3_000)
        for transform in (None, keep_most, fail_on_some):
            count_tokens(
                root / f"of-{size}",
                tokenizer=byte_tokenizer(),
                transform=transform,
                on_error="skip" if transform is fail_on_some else "raise",
                processes=1,
                progress=False,
            )
        made.append(root / f"of-{size}")
    return made


CASES = st.fixed_dictionaries(
    {
        "packing": st.sampled_from(["concat", "concat", "one_per_row", "best_fit"]),
        "overflow": st.sampled_from(["cut", "rows"]),
        "num_lanes": st.sampled_from([1, 4, 12, 30]),
        "min_tokens": st.sampled_from([0, 20]),
        "transform": st.sampled_from([None, keep_most, fail_on_some]),
        "bos": st.sampled_from([None, EOS]),
        "shuffle_algo": st.sampled_from(["py1e", "naive", "seekable"]),
        "seed": st.integers(0, 3),
        "epochs": st.sampled_from([None, None, 2]),
    }
)


def streams_of(corpora: list[Path], shares: tuple[float | None, ...]) -> list[Stream]:
    is_mixed = all(share is not None for share in shares)
    chosen = zip(corpora[-len(shares) :], shares, strict=True)
    return [Stream(str(folder), proportion=share if is_mixed else None) for folder, share in chosen]


def without_place(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in ("version", "sources")}


@given(
    case=CASES,
    shares=st.sampled_from([(None,), (None, None), (1.0, 3.0), (0.5, 1.0, 0.2)]),
    seq_lens=st.sampled_from([(16, 16), (16, 50), (90, 33)]),
    moves=st.tuples(st.integers(0, 6), st.sampled_from([0, 1, 7, 60, 400]), st.integers(1, 3)),
)
@settings(max_examples=EXAMPLES)
def test_a_seek_with_lengths_gives_the_rows_the_state_and_the_statistics_that_reading_gives(
    corpora: list[Path],
    case: dict[str, Any],
    shares: tuple[float | None, ...],
    seq_lens: tuple[int, int],
    moves: tuple[int, int, int],
) -> None:
    """Save a run's state, resume it with another `seq_len`, seek, and compare the next rows."""
    before, distance, after = moves
    options = {**case, "on_error": "skip" if case["transform"] is fail_on_some else "raise"}
    if options["packing"] != "one_per_row":
        del options["overflow"]
    if len(shares) > 1 and shares[0] is not None:
        options["epochs"] = None
    data = streams_of(corpora, shares)
    first = make_loader(data, seq_len=seq_lens[0], lengths="off", **options)
    try:
        list(first.take(before))
        state = first.state_dict()
        found = []
        for lengths in ("off", "require"):
            loader = make_loader(data, seq_len=seq_lens[1], lengths=lengths, **options)
            loader.load_state_dict(state)
            loader.seek(loader.rows + distance)
            rows = [batch["input_ids"].tolist() for batch in loader.take(after)]
            found.append((rows, without_place(loader.state_dict()), loader.stats().as_dict()))
    except CloudloadError as error:
        # expected with or without lengths: a lane has no tokens, or seq_len changed in a tail
        if "has no tokens" in str(error) or "tail" in str(error):
            return
        raise
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


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of documents in each `read_texts` call of this process."""
    numbers: list[int] = []
    original = DocumentReader.read_texts

    def count(self: DocumentReader, samples: Any) -> Any:
        numbers.append(len(samples))
        return original(self, samples)

    monkeypatch.setattr(DocumentReader, "read_texts", count)
    return numbers


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


def test_a_seek_of_100_000_rows_reads_a_few_documents(corpora: list[Path], read: list[int]) -> None:
    loader = make_loader(str(corpora[1]), lengths="require")
    loader.seek(100_000)
    assert not read
    next(iter(loader))
    assert sum(read) < 500
    assert loader.stats().documents > 8_000


def test_skipped_batches_are_not_read_and_leave_the_state_that_reading_leaves(
    corpora: list[Path], read: list[int]
) -> None:
    states = []
    for lengths in ("off", "require"):
        loader = make_loader(str(corpora[2]), lengths=lengths)
        list(loader.take(2))
        loader.close()
        read.clear()
        loader.skip(300)
        states.append(without_place(loader.state_dict()))
        loader.close()
    assert not read
    assert states[0] == states[1]


def test_a_state_between_exchanges_is_resumed_without_reading_its_batches_again(
    corpora: list[Path], read: list[int]
) -> None:
    loader = make_loader(str(corpora[2]), exchange_every=50, lengths="off", batch_size=12)
    list(loader.take(99))
    state = loader.state_dict()
    expected = [batch["input_ids"].tolist() for batch in loader.take(3)]
    loader.close()
    numbers = []
    for lengths in ("off", "require"):
        again = make_loader(str(corpora[2]), exchange_every=50, lengths=lengths, batch_size=12)
        again.load_state_dict(state)
        read.clear()
        assert [batch["input_ids"].tolist() for batch in again.take(3)] == expected
        numbers.append(sum(read))
    assert numbers[1] < numbers[0] / 2


def test_the_length_of_a_finite_run_is_known(corpora: list[Path]) -> None:
    packings = ("concat", "best_fit", "one_per_row")
    for packing, tail in (*((each, "pad") for each in packings), ("concat", "drop")):
        loader = make_loader(
            [str(folder) for folder in corpora],
            lengths="require",
            epochs=3,
            packing=packing,
            tail=tail,
        )
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


def test_lengths_of_another_transform_or_tokenizer_are_not_taken(tmp_path: Path) -> None:
    write_mds(tmp_path, random_documents(0, 50))
    count_tokens(tmp_path, tokenizer=byte_tokenizer(), processes=1, progress=False)
    make_loader(str(tmp_path), lengths="require")
    for other in ({"transform": keep_most}, {"tokenizer": other_tokenizer()}):
        with pytest.raises(DatasetError, match="has none for this tokenizer"):
            make_loader(str(tmp_path), lengths="require", **other)


def other_tokenizer() -> Any:
    """The byte tokenizer with one additional token."""
    tokenizer = byte_tokenizer().from_str(byte_tokenizer().to_str())
    tokenizer.add_tokens(["quick"])
    return tokenizer


def test_lengths_elsewhere_serve_data_that_is_read_only(tmp_path: Path) -> None:
    write_mds(tmp_path / "data", random_documents(0, 50))
    out = str(tmp_path / "elsewhere")
    count_tokens(
        tmp_path / "data", tokenizer=byte_tokenizer(), out=out, processes=1, progress=False
    )
    assert sorted(each.name for each in (tmp_path / "data").iterdir()) == [
        "index.json",
        "shard.00000.mds",
    ]
    loader = make_loader(str(tmp_path / "data"), lengths=out, epochs=1)
    assert len(loader) == len(list(loader))


def test_lengths_that_are_required_and_missing_are_named_with_the_command(tmp_path: Path) -> None:
    write_mds(tmp_path, random_documents(0, 50))
    with pytest.raises(DatasetError, match=r"has none for this tokenizer.*cloudload count"):
        make_loader(str(tmp_path), lengths="require")


def test_damaged_lengths_are_refused_by_name(tmp_path: Path) -> None:
    write_mds(tmp_path, random_documents(0, 50))
    count_tokens(tmp_path, tokenizer=byte_tokenizer(), processes=1, progress=False)
    [group] = tmp_path.glob("lengths/*/*.lengths")
    content = bytearray(group.read_bytes())
    content[-1] ^= 1
    group.write_bytes(content)
    loader = make_loader(str(tmp_path), lengths="auto", local=str(tmp_path.parent / "cache"))
    with pytest.raises(DatasetError, match=rf"{group.name}: the size or hash"):
        next(iter(loader))
    index = group.parent / next(group.parent.glob("index-*.json")).name
    index.write_text("[]")
    with pytest.raises(DatasetError, match=rf"{index.name}: the file is not an index"):
        make_loader(str(tmp_path), lengths="auto")
