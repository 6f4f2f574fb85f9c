"""A run continues on data that was written again if each shard has the same samples. Otherwise, the
error says what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload import Stream, convert_to_mds
from cloudload.data.mds.hashes import SAMPLES_HASH
from cloudload.errors import StreamChangedError
from cloudload.run.state_fields import SAMPLES_FIELD
from cloudload.testing import Leg, run_leg
from cloudload.tools.check import check_dataset
from testkit import loaders
from testkit.both_readers import streaming_dataset
from testkit.conversions import QUIET, write_lines
from testkit.corpora import random_documents
from testkit.damaged_datasets import edit_entry
from testkit.state_fields import without

TEXTS = random_documents(3, 90, max_words=40)
FORMS: dict[str, dict[str, Any]] = {
    "zstd": {"compression": "zstd"},
    "gz": {"compression": "gz"},
    "raw": {"compression": None},
    "other hashes": {"hashes": ["sha256", "xxh3_64"]},
    "larger limit": {"shard_bytes": 1 << 24},
}


def convert(folder: Path, texts: list[str] = TEXTS, **options: Any) -> str:
    """Convert `texts` to a dataset of one shard."""
    rows = [{"text": text, "id": text[:4], "n": len(text)} for text in texts]
    corpus = write_lines(folder.parent / f"{folder.name}.jsonl", rows)
    convert_to_mds(corpus, folder, **QUIET, **options)
    return str(folder)


def ranks(data: Any, cache: Path, on_change: dict[str, str] | None = None, **options: Any) -> Any:
    return loaders.ranks(data, on_change=on_change, local=cache, num_lanes=6, **options)


def save_within_documents(make_rank: Any) -> tuple[dict[str, Any], list[Any]]:
    """Save a state whose lanes are in the middle of documents. Returns it and the rows after it."""
    rows, states = run_leg(make_rank, Leg(batches=12))
    return states[5], rows[states[5]["rows"] :]


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
@pytest.mark.parametrize("form", FORMS)
def test_a_run_continues_exactly_on_the_same_samples_with_another_header(
    tmp_path: Path, form: str, packing: str
) -> None:
    options: dict[str, Any] = {"packing": packing, "overflow": "rows"}
    state, rest = save_within_documents(
        ranks(convert(tmp_path / "one", compression="bz2"), tmp_path / "cache", **options)
    )
    again = ranks(convert(tmp_path / "two", **FORMS[form]), tmp_path / "cache", **options)
    rows, states = run_leg(again, Leg(2, batches=3), state)
    assert rows == rest[: len(rows)]
    assert states[-1][SAMPLES_FIELD] == state[SAMPLES_FIELD]
    assert states[-1]["data"] != state["data"]


def test_a_run_continues_on_a_mixture_of_which_one_stream_was_written_again(tmp_path: Path) -> None:
    def streams(code: str) -> list[Stream]:
        return [Stream(web, name="web", proportion=0.5), Stream(code, name="code", proportion=0.5)]

    web = convert(tmp_path / "web")
    code, again = (convert(tmp_path / form / "code", **FORMS[form]) for form in ("zstd", "raw"))
    changed = convert(tmp_path / "changed" / "code", [text.upper() for text in TEXTS])
    state, rest = save_within_documents(ranks(streams(code), tmp_path / "cache"))
    rows, _ = run_leg(ranks(streams(again), tmp_path / "cache"), Leg(batches=4), state)
    assert rows == rest[: len(rows)]
    more = [*streams(again), Stream(web, name="more", proportion=0.0)]
    run_leg(ranks(more, tmp_path / "cache"), Leg(batches=1), state)
    with pytest.raises(StreamChangedError, match="but the samples or columns differ"):
        run_leg(ranks(streams(changed), tmp_path / "cache"), Leg(), state)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: convert(folder, [*TEXTS[:-1], TEXTS[-1].upper()]),
        lambda folder: convert(folder, [*TEXTS[2:], *TEXTS[:2]]),
        lambda folder: convert(folder, keep=["n"]),
    ],
    ids=["a text", "the order", "a column"],
)
def test_other_samples_are_refused_even_if_their_number_is_equal(
    tmp_path: Path, change: Any
) -> None:
    state, _ = save_within_documents(ranks(convert(tmp_path / "one"), tmp_path / "cache"))
    with pytest.raises(StreamChangedError) as refusal:
        run_leg(ranks(change(tmp_path / "two"), tmp_path / "cache"), Leg(), state)
    expected = "Each shard has as many samples as before, but the samples or columns differ"
    assert expected in str(refusal.value)


def test_samples_in_other_shards_are_refused_because_the_order_depends_on_them(
    tmp_path: Path,
) -> None:
    one = convert(tmp_path / "one", shard_bytes=4_000, compression=None)
    many = ["md5", "sha1", "sha224", "sha256", "sha384", "sha512", "xxh3_64", "xxh128", "xxh32"]
    two = convert(tmp_path / "two", shard_bytes=4_000, hashes=many)
    state, _ = save_within_documents(ranks(one, tmp_path / "cache"))
    with pytest.raises(StreamChangedError, match=r"shards \(fingerprints.*: saved") as refusal:
        run_leg(ranks(two, tmp_path / "cache", {"data": "same"}), Leg(), state)
    assert "because a shard's header counts toward its size" in str(refusal.value)
    assert "on_change" not in str(refusal.value)


# ---------------------------------------------------------------- without hashes of the samples


def write_by_streaming(folder: Path, compression: str | None) -> str:
    streaming = pytest.importorskip("streaming")
    with streaming.MDSWriter(
        out=str(folder), columns={"text": "str"}, compression=compression, hashes=["sha1"]
    ) as writer:
        for text in TEXTS:
            writer.write({"text": text})
    return str(folder)


@pytest.mark.usefixtures("alone_with_streaming")
def test_the_user_may_say_that_samples_are_the_same_and_then_no_token_is_lost(
    tmp_path: Path,
) -> None:
    one, two = (write_by_streaming(tmp_path / str(form), form) for form in ("zstd", None))
    state, rest = save_within_documents(ranks(one, tmp_path / "cache"))
    assert SAMPLES_FIELD not in state
    with pytest.raises(StreamChangedError, match="the state has no hashes of them") as refusal:
        run_leg(ranks(two, tmp_path / "cache"), Leg(), state)
    assert "on_change={'data': 'same'}, which drops no tokens" in str(refusal.value)
    rows, _ = run_leg(ranks(two, tmp_path / "cache", {"data": "same"}), Leg(batches=4), state)
    assert rows == rest[: len(rows)]


def test_a_state_or_an_index_without_hashes_of_samples_is_named(tmp_path: Path) -> None:
    one, two = convert(tmp_path / "one"), convert(tmp_path / "two", compression="gz")
    state, rest = save_within_documents(ranks(one, tmp_path / "cache"))
    before = without(state, SAMPLES_FIELD)
    rows, _ = run_leg(ranks(one, tmp_path / "cache"), Leg(batches=4), before)
    assert rows == rest[: len(rows)], "a state of an earlier version must continue on its own data"
    with pytest.raises(StreamChangedError, match="because the state has no hashes"):
        run_leg(ranks(two, tmp_path / "cache"), Leg(), before)
    edit_entry(lambda entry: entry["raw_data"]["hashes"].pop(SAMPLES_HASH), -1)(Path(two))
    with pytest.raises(StreamChangedError, match="because the index has no hashes"):
        run_leg(ranks(two, tmp_path / "cache"), Leg(), state)


# ---------------------------------------------------------------- the hashes in the index


@pytest.mark.usefixtures("alone_with_streaming")
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_streaming_reads_an_index_with_hashes_of_samples(
    tmp_path: Path, compression: str | None
) -> None:
    folder = convert(tmp_path / "data", compression=compression, shard_bytes=3_000)
    dataset = streaming_dataset(remote=folder, local=str(tmp_path / "local"), validate_hash="xxh64")
    assert [dataset[number]["text"] for number in range(len(TEXTS))] == TEXTS


def test_the_check_computes_the_hashes_of_samples(tmp_path: Path) -> None:
    folder = Path(convert(tmp_path / "data", shard_bytes=3_000))
    assert check_dataset(folder, progress=False).findings == ()
    edit_entry(lambda entry: entry["raw_data"]["hashes"].update({SAMPLES_HASH: "0" * 32}), 2)(
        folder
    )
    [finding] = check_dataset(folder, progress=False).findings
    assert (finding.kind, finding.where) == ("hash-mismatch", "shard.00002.mds")
    assert SAMPLES_HASH in finding.what


def test_without_hashes_the_index_has_none_of_the_samples(tmp_path: Path) -> None:
    folder = Path(convert(tmp_path / "data", hashes=[]))
    [entry] = json.loads((folder / "index.json").read_text())["shards"]
    assert entry["raw_data"]["hashes"] == {}
