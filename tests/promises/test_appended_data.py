"""A run that resumes after an append reads only its original shards. New runs read all shards."""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import Documents, Rows, Stream, convert_to_mds
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.rows.packing.tables import SPAN_STREAM
from cloudload.testing import Leg, Row, run_leg
from cloudload.tools.provenance.state_run import open_run
from testkit import loaders
from testkit.conversions import QUIET, write_lines
from testkit.corpora import EOS, byte_tokenizer, random_documents
from testkit.counted import count
from testkit.fault_proxy import FaultProxy
from testkit.loaders import list_settings
from testkit.state_fields import without

WORLDS = (1, 2, 3, 6)
SETTINGS: dict[str, Any] = {**QUIET, "shard_bytes": 1_500}


def convert(out: str | Path, name: str, number: int, **options: Any) -> None:
    """Convert random documents seeded by `name`. With `append=True`, append them."""
    folder = Path(str(out).replace("://", "-")).name
    scratch = Path(options.pop("scratch", Path(out).parent))
    texts = random_documents(sum(name.encode()), number)
    source = write_lines(scratch / f"{folder}-{name}.jsonl", texts)
    convert_to_mds(source, out, **SETTINGS, **options)


def ranks(data: Any, cache: Path, **options: Any) -> Any:
    return loaders.ranks(data, local=cache, **{"num_lanes": 6, **options})


def real(rows: list[Row]) -> list[Row]:
    """Drop the padding rows that complete the last batch."""
    return [row for row in rows if not row.is_padding]


@pytest.mark.parametrize("lengths", ["none", "before", "after", "both"])
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_a_run_continues_on_its_shards_on_any_world(
    tmp_path: Path, packing: str, lengths: str
) -> None:
    data = tmp_path / "mds"
    convert(data, "a", 60)
    make_rank = ranks(str(data), tmp_path / "cache", packing=packing)
    whole, _ = run_leg(make_rank, Leg(batches=60))
    if lengths in ("before", "both"):
        count(data)
    _, states = run_leg(make_rank, Leg(2, batches=3))
    state = states[-1]
    rows = whole[state["rows"] :]
    for name, world in zip("bcde", WORLDS, strict=True):
        convert(data, name, 25, append=True)
        if lengths in ("after", "both"):
            count(data)
        found, states = run_leg(make_rank, Leg(world, batches=2), state)
        with make_rank(batch_size=1) as loader:
            loader.load_state_dict(state)
            assert (loader.describe()["lengths"] is None) == (lengths == "none")
        assert found == rows[: len(found)]
        rows, state = rows[len(found) :], states[-1]
    fresh, _ = run_leg(ranks(str(data), tmp_path / "other", packing=packing), Leg(batches=20))
    assert fresh != whole[: len(fresh)]


def test_a_finite_run_ends_after_the_documents_with_which_it_began(tmp_path: Path) -> None:
    data = tmp_path / "mds"
    convert(data, "a", 40)
    make_rank = ranks(str(data), tmp_path / "cache", epochs=2)
    whole, states = run_leg(make_rank, Leg(2, batches=None))
    convert(data, "b", 40, append=True)
    for state in (states[0], states[len(states) // 2], states[-2]):
        for world in (1, 3):
            rows, _ = run_leg(make_rank, Leg(world, batches=None), state)
            assert real(rows) == real(whole[state["rows"] :])
    more, _ = run_leg(make_rank, Leg(2, batches=None))
    assert len(more) > 1.5 * len(whole)


def test_new_runs_read_all_shards_and_the_log_and_description_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "mds"
    convert(data, "a", 60)
    with ranks(str(data), tmp_path / "cache")(batch_size=2) as loader:
        began = len(loader.recipe.corpus.datasets[0].shards)
        state = loader.state_dict()
    convert(data, "b", 30, append=True)
    caplog.set_level(logging.INFO)
    with ranks(str(data), tmp_path / "cache")(batch_size=2) as loader:
        stream = f"stream {loader.recipe.labels[0]}"
        assert loader.num_samples == loader.describe()[stream] == 90
        total = len(loader.recipe.corpus.datasets[0].shards)
        assert "this run reads" not in caplog.text
        loader.load_state_dict(state)
        assert loader.num_samples == loader.describe()[stream] == 60
        expected = f"{stream[7:]}: this run reads only the first {began} of {total} shards, because"
        expected += " the others were added after it began. A new run reads all shards"
        assert expected in caplog.text
        assert f"samples in the first {began} of {total} shards" in list_settings(loader)
        assert loader.state_dict() == state
        new = ranks(str(data), tmp_path / "cache")(batch_size=2)
        loader.load_state_dict(new.state_dict())  # the state of a new run
        assert loader.num_samples == 90
        new.close()
    caplog.clear()
    with ranks(str(data), tmp_path / "cache")(batch_size=2, dp_rank=1, dp_world_size=2) as loader:
        loader.load_state_dict(state)
    assert "this run reads" not in caplog.text  # rank 0 logs it


def test_the_run_of_a_state_is_reopened_on_its_own_shards(tmp_path: Path) -> None:
    data = tmp_path / "mds"
    convert(data, "a", 60)
    whole, states = run_leg(ranks(str(data), tmp_path / "cache"), Leg(2, batches=9))
    convert(data, "b", 30, append=True)
    run = open_run(states[4], tokenizer=byte_tokenizer())
    with run.loader(batch_size=2, num_workers=0, local=tmp_path / "cache") as loader:
        batch = next(iter(loader))
        spans = [tuple(span) for span in batch.spans[:, 1:].tolist()]
        assert spans == [span for row in whole[8:10] for span in row.spans]
        traced = [(span.sample, span.id) for span in loader.trace(batch)]
        assert traced == [(sample, f"mds-a.jsonl:{sample + 1}") for _, _, sample, _, _ in spans]


def test_streams_read_as_one_corpus_keep_their_shards(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        convert(folder, folder.name, 30)
    make_rank = ranks([str(folder) for folder in folders], tmp_path / "cache")
    whole, states = run_leg(make_rank, Leg(2, batches=30))
    state = states[4]
    old = without(state, "stream_shards")
    convert(folders[1], "more", 20, append=True)
    for each in (state, old):
        rows, _ = run_leg(make_rank, Leg(3, batches=4), each)
        assert rows == whole[state["rows"] :][: len(rows)]
    convert(folders[2], "more", 20, append=True)
    rows, _ = run_leg(make_rank, Leg(3, batches=4), state)
    assert rows == whole[state["rows"] :][: len(rows)]
    with pytest.raises(StreamChangedError, match="the state does not match"):
        run_leg(make_rank, Leg(3, batches=1), old)  # has no shard counts per stream


def test_of_a_mixture_one_stream_may_be_appended_and_one_added(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        convert(folder, folder.name, 30)
    streams = [Stream(str(folder), proportion=1.0) for folder in folders]
    make_rank = ranks(streams[:2], tmp_path / "cache")
    whole, states = run_leg(make_rank, Leg(2, batches=40))
    state = states[4]
    convert(folders[0], "more", 20, append=True)
    rows, after = run_leg(make_rank, Leg(3, batches=6), state)
    assert rows == whole[state["rows"] :][: len(rows)]
    assert "stream_shards" not in after[-1]
    wider = ranks([*streams[:2], Stream(str(folders[2]), proportion=0.5)], tmp_path / "cache")
    with wider(batch_size=6) as loader:
        loader.load_state_dict(after[-1])
        assert np.diff(loader.recipe.corpus.stream_starts).tolist() == [30, 30, 30]
        found = {int(each) for batch in loader.take(20) for each in batch.spans[:, SPAN_STREAM]}
        assert found == {0, 1, 2}


def test_chosen_and_repeated_streams_keep_their_shards(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        convert(folder, folder.name, 30)
    streams = [Stream(str(folders[0]), repeat=1.5), Stream(str(folders[1]), choose=10)]
    make_rank = ranks(streams, tmp_path / "cache")
    whole, states = run_leg(make_rank, Leg(2, batches=30))
    for folder in folders:
        convert(folder, "more", 20, append=True)
    rows, _ = run_leg(make_rank, Leg(3, batches=4), states[4])
    assert rows == whole[states[4]["rows"] :][: len(rows)]


def test_data_that_does_not_begin_with_the_saved_data_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "mds"
    convert(data, "a", 60)
    _, states = run_leg(ranks(str(data), tmp_path / "cache"), Leg(2, batches=3))
    convert(data, "b", 90, overwrite=True)
    other = "a different dataset, with 90 samples instead of 60"
    with pytest.raises(StreamChangedError, match=other):
        run_leg(ranks(str(data), tmp_path / "cache"), Leg(2, batches=3), states[-1])


def test_data_written_again_and_then_appended_is_recognized_by_its_samples(tmp_path: Path) -> None:
    for name, compression in {"one": "zstd", "two": "gz"}.items():
        convert(tmp_path / name / "mds", "a", 60, compression=compression)
    make = [ranks(str(tmp_path / name / "mds"), tmp_path / "cache") for name in ("one", "two")]
    whole, states = run_leg(make[0], Leg(2, batches=30))
    convert(tmp_path / "two" / "mds", "b", 30, append=True, compression="gz")
    rows, _ = run_leg(make[1], Leg(3, batches=4), states[4])
    assert rows == whole[states[4]["rows"] :][: len(rows)]


def test_no_shard_is_downloaded_again_after_an_append(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    convert(s3_url, "a", 60, scratch=tmp_path)
    make_rank = ranks(s3_url, tmp_path / "cache", epochs=1)
    whole, states = run_leg(make_rank, Leg(2, batches=None))
    convert(s3_url, "b", 30, append=True, scratch=tmp_path)
    s3_proxy.set_faults([])
    rows, _ = run_leg(make_rank, Leg(3, batches=None), states[2])
    assert real(rows) == real(whole[states[2]["rows"] :])
    assert not s3_proxy.requests(r"GET .*/shard\.")
    run_leg(make_rank, Leg(2, batches=None))
    fetched = s3_proxy.requests(r"GET .*/shard\.")
    assert fetched
    assert all("/00001/shard" in request.line for request in fetched)


def test_after_an_append_that_was_not_counted_the_error_says_that_counting_the_new_shards_is_enough(
    tmp_path: Path,
) -> None:
    data, other = tmp_path / "mds", tmp_path / "other"
    for folder in (data, other):
        convert(folder, "a", 60)
        count(folder)
    streams = [Stream(str(data), proportion=1), Stream(str(other), proportion=1)]
    opened = {
        "mixture": ranks(streams, tmp_path / "cache", batch_size=2, epochs=1),
        "uneven": ranks(str(data), tmp_path / "cache", batch_size=2, dp_rank=0, dp_world_size=5),
    }
    tokens: dict[str, Any] = {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": 16}
    open_rows = partial(Rows, str(data), num_lanes=6, **tokens)
    before = {name: make() for name, make in opened.items()}
    states = {name: loader.state_dict() for name, loader in before.items()}
    convert(data, "b", 25, append=True)
    for name, error in (
        ("mixture", "counts only shards without lengths, such as appended ones"),
        ("uneven", "token lengths of all shards, also of appended ones, allow any number"),
    ):
        with pytest.raises((DatasetError, ValueError), match=error):
            opened[name]()
    with pytest.raises(DatasetError, match="counts only shards without lengths, such as appended"):
        open_rows(state=states["uneven"])
    count(data)
    for name in ("mixture", "uneven"):
        loader = opened[name]()
        loader.load_state_dict(states[name])
        assert [each.rows.tolist() for each in loader.take(4)] == [
            each.rows.tolist() for each in before[name].take(4)
        ]
    assert open_rows(state=states["uneven"]).first_row == 0


# ---------------------------------------------------------------- documents by index


@pytest.mark.parametrize("shuffle_algo", ["py1e", "seekable"])
@pytest.mark.parametrize("num_streams", [1, 2])
def test_documents_continue_on_the_shards_of_a_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_streams: int, shuffle_algo: Any
) -> None:
    data = [tmp_path / f"mds-{number}" for number in range(num_streams)]
    for number, folder in enumerate(data):
        convert(folder, f"a{number}", 40)

    def open_documents() -> Documents:
        urls = [str(folder) for folder in data]
        return Documents(urls, epochs=2, seed=3, shuffle_algo=shuffle_algo, local=tmp_path / "c")

    docs = open_documents()
    whole, began = list(docs), docs.num_documents
    queue, batches = docs.queue(), docs.batches(5)
    queue.take(20)
    queue.done([0, 1, 7, 19])
    next(iter(batches))
    states = queue.state_dict(), batches.state_dict()
    for name in "bc":
        convert(data[-1], name, 15, append=True)
        with closing(open_documents()) as docs:
            caplog.set_level(logging.INFO)
            caplog.clear()
            assert docs.num_documents > began
            queue, batches = docs.queue(), docs.batches(5)
            queue.load_state_dict(states[0])
            assert "this run reads only the first" in caplog.text
            assert docs.num_documents == began
            assert (list(docs), len(docs)) == (whole, 2 * began)
            indices, found = zip(*queue.take(3 * began), strict=True)
            assert list(indices) == [each for each in range(2 * began) if each not in (0, 1, 7, 19)]
            assert list(found) == [whole[index] for index in indices]
            with pytest.raises(DatasetError, match="a state was loaded that has another number"):
                next(iter(batches))
            batches.load_state_dict(states[1])
            rest = [document for batch in batches for document in batch]
            assert rest == whole[5:]
            fresh = docs.queue()
            fresh.load_state_dict(states[0])
            assert (fresh.state_dict(), fresh.open) == (states[0], [])


def test_documents_without_a_state_have_all_shards(tmp_path: Path) -> None:
    data = tmp_path / "mds"
    convert(data, "a", 40)
    with closing(Documents(data, local=tmp_path / "c")) as docs:
        old = docs.queue().state_dict()
    convert(data, "b", 15, append=True)
    with closing(Documents(data, local=tmp_path / "c")) as docs:
        assert docs.num_documents == 55
        documents = iter(docs)
        next(documents)
        queue, new = docs.queue(), docs.queue().state_dict()
        for state, number in ((old, 40), (new, 55), (without(old, "stream_shards"), 40)):
            queue.load_state_dict(state)
            assert len(docs) == number
            if state is old:
                with pytest.raises(DatasetError, match="a state was loaded that has another numb"):
                    next(documents)
            assert len(queue.take(60)) == number
        for wrong in ({**old, "stream_shards": "2"}, {**old, "stream_shards": [1.5]}):
            with pytest.raises(StreamChangedError, match="stream_shards: the state is damaged"):
                queue.load_state_dict(wrong)
        with pytest.raises(StreamChangedError, match="next: the state is damaged"):
            docs.batches(1).load_state_dict(old)
        with pytest.raises(StreamChangedError, match="data: saved 'x', found"):
            queue.load_state_dict({**old, "data": "x", "samples": ""})
        assert len(docs) == 40, "a state that is refused changes nothing"
