"""With `on_error`, a bad document ends the run with an error that names it, or is left out."""

from __future__ import annotations

import builtins
import functools
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudload import Stream
from cloudload.errors import CloudloadError, DatasetError, StreamChangedError, TokenizerError
from cloudload.provenance import open_run
from cloudload.run.saved import read_counts
from cloudload.testing import Leg, check_resume, check_worlds, run_leg
from testkit import loaders
from testkit.awkward import Case
from testkit.corpora import random_documents, write_mds
from testkit.kinds import every_case, loaders_of

COUNT = 60
BAD = {5, 17, 18, 41}
IDS = [f"doc-{number}" for number in range(COUNT)]
TEXTS = [text.encode() for text in random_documents(1, COUNT)]
BROKEN_TEXTS = [
    text[:9] + b"\xff" + text[9:] if number in BAD else text for number, text in enumerate(TEXTS)
]


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["id"].removeprefix("doc-"))


def fails(sample: dict[str, Any]) -> str:
    if number_of(sample) in BAD:
        raise KeyError("body")
    return str(sample["text"].decode())


def filters(sample: dict[str, Any]) -> str | None:
    return None if number_of(sample) in BAD else fails(sample)


def returns_number(sample: dict[str, Any]) -> Any:
    return 7 if number_of(sample) in BAD else fails(sample)


def returns_surrogate(sample: dict[str, Any]) -> str:
    return "\ud83e" if number_of(sample) in BAD else fails(sample)


def fails_within(error: BaseException, sample: dict[str, Any]) -> str:
    if number_of(sample) in BAD:
        raise error
    return str(sample["text"])


def wraps_store_error(sample: dict[str, Any]) -> str:
    try:
        return fails_within(ConnectionResetError("no answer"), sample)
    except OSError as error:
        raise ValueError("cannot look the document up") from error


@pytest.fixture(scope="module")
def folder(module_folder: Path) -> Path:
    extra: dict[str, tuple[str, list[Any]]] = {"id": ("str", IDS)}
    options: dict[str, Any] = {"encoding": "bytes", "shard_bytes": 2_000, "extra": extra}
    write_mds(module_folder / "good", TEXTS, **options)
    write_mds(module_folder / "broken", BROKEN_TEXTS, **options)
    return module_folder


def ranks(folder: Path, data: str = "good", **settings: Any) -> Any:
    settings = {"num_lanes": 6, "local": folder / "cache", **settings}
    return loaders.ranks(folder / data, **settings)


WAYS: dict[str, dict[str, Any]] = {
    "bytes that are not UTF-8": {"data": "broken"},
    "a transform that raises": {"transform": fails},
    "a transform that returns a number": {"transform": returns_number},
    "a transform that returns a lone surrogate": {"transform": returns_surrogate},
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


# ---------------------------------------------------------------- skip


@every_way
@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
@pytest.mark.parametrize("epochs", [None, 2])
def test_a_skipped_document_gives_the_rows_of_a_filter_in_every_world_and_is_counted(
    folder: Path, way: dict[str, Any], packing: str, epochs: int | None
) -> None:
    settings: dict[str, Any] = {"packing": packing, "epochs": epochs, "overflow": "rows"}
    leg = Leg(2, workers=2, batch_size=6, batches=30)
    settings["data"] = way.get("data", "good")
    filtered, by_filter = run_leg(ranks(folder, transform=filters, **settings), leg)
    skipped, by_skip = run_leg(ranks(folder, on_error="skip", **{**settings, **way}), leg)
    assert skipped == filtered
    counts, expected = (read_counts(each[-1]["counts"]) for each in (by_skip, by_filter))
    assert counts[0, 6] == expected[0, 2] > 0
    assert counts[0, 2] == expected[0, 6] == 0
    counts[0, [2, 6]] = expected[0, [2, 6]] = 0
    assert counts.tolist() == expected.tolist()
    check_worlds(
        ranks(folder, on_error="skip", **{**settings, **way}),
        [Leg(batches=2), Leg(3, workers=2, batches=4), Leg(6, batch_size=3, exchange_every=2)],
    )


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
def test_a_run_that_skips_resumes_after_every_batch(folder: Path, packing: str) -> None:
    make = ranks(folder, "broken", on_error="skip", packing=packing, epochs=1)
    check_resume(make, global_batch=4, num_batches=20)


def leave_out(sample: dict[str, Any]) -> str | None:
    text = str(sample["text"])
    return None if "b" in text else text


def break_out(sample: dict[str, Any]) -> str:
    text = str(sample["text"])
    if "b" in text:
        raise ValueError(text)
    return text


@every_case()
def test_any_corpus_in_any_chain_of_worlds_reads_as_with_a_filter(folder: str, case: Case) -> None:
    filtered = loaders_of(case, folder, transform=leave_out)
    skipped = loaders_of(case, folder, transform=break_out, on_error="skip")
    try:
        expected = check_worlds(filtered, case.legs)
    except DatasetError:  # all documents are left out
        with pytest.raises(DatasetError, match="tokens"):
            check_worlds(skipped, case.legs)
        return
    assert check_worlds(skipped, case.legs) == expected


@every_way
def test_statistics_count_skipped_documents_by_stream(folder: Path, way: dict[str, Any]) -> None:
    data = [Stream(str(folder / "good"), name="one"), Stream(str(folder / "broken"), name="two")]
    settings: dict[str, Any] = {"transform": way.get("transform"), "on_error": "skip", "epochs": 1}
    with loaders.make_loader(data, local=folder / "cache", **settings) as loader:
        list(loader)
        stats = loader.stats()
    in_one = len(BAD) if "transform" in way else 0
    assert (stats.failed, stats.streams["one"].failed) == (in_one + len(BAD), in_one)
    assert stats.documents + stats.failed == 2 * COUNT
    assert stats.filtered == 0
    assert stats.streams["two"].epoch == 1.0
    assert stats.as_dict()["streams/two/failed"] == len(BAD)


def test_the_1st_2nd_and_4th_skipped_documents_are_logged_with_id_and_reason(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with ranks(folder, transform=fails, shuffle=False, on_error="skip", epochs=1)() as loader:
        list(loader)
    found = [text for text in caplog.messages if "on_error='skip' left out" in text]
    assert len(found) == 3
    for text, number in zip(found, ("1", "2", "4"), strict=True):
        assert "good/shard." in text
        assert "(id 'doc-" in text
        assert "fails failed on sample" in text
        assert "KeyError: 'body'" in text
        assert f"has left out {number} of the " in text
        assert "Traceback" not in text


def test_a_stream_of_which_every_document_fails_is_doubted_after_1000_documents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    data = write_mds(tmp_path / "mds", [b"\xff"] * 1_500, encoding="bytes")
    settings = {"local": tmp_path / "cache", "num_lanes": 1, "on_error": "skip"}
    with (
        pytest.raises(DatasetError, match=r"lane 0 of \S+ has no tokens\. .*on_error"),
        loaders.make_loader(data, **settings) as loader,
    ):
        next(iter(loader))
    doubt, *_ = [text for text in caplog.messages if "that this process read from" in text]
    assert re.match(r"the last 1,\d+ documents that this process read from \S+ \(1,500 in", doubt)


# ---------------------------------------------------------------- raise


@every_way
def test_by_default_the_error_names_the_document_and_the_choice_to_skip(
    folder: Path, way: dict[str, Any]
) -> None:
    with pytest.raises(DatasetError) as raised:
        run_leg(ranks(folder, **way), Leg(batches=60))
    text = str(raised.value)
    assert f"{folder}/{way.get('data', 'good')}/shard.0" in text
    assert "(id 'doc-" in text
    assert text.endswith("To leave such documents out and count them, pass on_error='skip'")
    if "transform" in way:
        assert f"the transform {__name__}.{way['transform'].__name__} " in text


FOREIGN: list[tuple[BaseException, str]] = [
    (each, type(each).__name__)
    for each in (
        MemoryError("full"),
        RecursionError("deep"),
        OSError(24, "Too many open files"),
        ImportError("no module"),
        UserWarning("as an error"),
        SystemExit(3),
        GeneratorExit(),
        TokenizerError("cannot load"),
        subprocess.TimeoutExpired("lynx", 5),
    )
]
if sys.version_info >= (3, 11):  # Python 3.10 has no ExceptionGroup
    new_group: Any = vars(builtins)["ExceptionGroup"]
    INNER = new_group("inner", [TimeoutError("b")])
    FOREIGN.append((new_group("two", [ValueError("a"), INNER]), "TimeoutError"))


@pytest.mark.parametrize(
    ("transform", "cause"),
    [
        *((functools.partial(fails_within, error), cause) for error, cause in FOREIGN),
        (wraps_store_error, "ConnectionResetError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_that_is_not_the_documents_or_that_such_an_error_caused_is_never_skipped(
    folder: Path, transform: Any, cause: str
) -> None:
    settings: dict[str, Any] = {"transform": transform, "transform_id": "x", "on_error": "skip"}
    expected = rf"on_error='skip' does not apply, because .* caused the {cause}"
    with pytest.raises(DatasetError, match=expected):
        run_leg(ranks(folder, **settings), Leg(batches=60))


def test_a_damaged_shard_and_a_tokenizer_that_fails_are_never_skipped(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    data = write_mds(tmp_path / "mds", ["known", "known stranger"], hashes=())
    words = Tokenizer(models.WordLevel({"known": 0, "<eos>": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    settings: dict[str, Any] = {"on_error": "skip", "epochs": 1}
    with pytest.raises(TokenizerError, match="tokenizers failed"):
        list(loaders.make_loader(data, local=tmp_path / "1", tokenizer=words, **settings))
    shard = tmp_path / "mds" / "shard.00000.mds"
    raw = bytearray(shard.read_bytes())
    place = raw.index(b"known") - 4
    raw[place : place + 4] = (99).to_bytes(4, "little")
    shard.write_bytes(raw)
    with pytest.raises(DatasetError, match="column sizes that do not add up to its size"):
        list(loaders.make_loader(data, local=tmp_path / "2", **settings))


def test_it_does_not_apply_to_token_ids() -> None:
    with pytest.raises(ValueError, match="on_error is 'skip', which does not apply to token IDs"):
        loaders.make_loader("nowhere", tokens_key="ids", on_error="skip")
    with pytest.raises(ValueError, match="on_error"):
        loaders.make_loader("nowhere", on_error="ignore")


# ---------------------------------------------------------------- resume


def rows_before_error(make_loader: Any) -> tuple[list[Any], list[Any]]:
    """Read rows until a bad document ends the run.

    Returns the rows, and the states before the first row and after each row.
    """
    rows: list[Any] = []
    states: list[Any] = []
    with make_loader(batch_size=1) as loader:
        states.append(loader.state_dict())

        def read_all() -> None:
            for batch in loader:
                rows.extend(batch["input_ids"].tolist())
                states.append(loader.state_dict())

        with pytest.raises(DatasetError, match="on_error='skip'"):
            read_all()
    return rows, states


@every_way
@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
@pytest.mark.parametrize("epochs", [None, 1])
def test_after_a_bad_document_ended_a_run_it_resumes_with_skip_as_if_it_always_had(
    folder: Path, way: dict[str, Any], packing: str, epochs: int | None
) -> None:
    settings = {**way, "packing": packing, "epochs": epochs, "overflow": "rows"}
    whole, _ = run_leg(ranks(folder, **settings, on_error="skip"), Leg(batches=80))
    ids = [list(row.input_ids) for row in whole]
    rows, states = rows_before_error(ranks(folder, **settings))
    assert rows == ids[: len(rows)]
    for state in (states[0], states[len(states) // 2], states[-1]):
        rest, after = run_leg(ranks(folder, **settings, on_error="skip"), Leg(2, batches=9), state)
        assert rest == whole[state["rows"] : state["rows"] + len(rest)]
        assert after[-1]["on_error"] == "skip"


def test_skip_becomes_raise_freely_unless_documents_were_skipped_and_back(folder: Path) -> None:
    settings: dict[str, Any] = {"transform": fails}
    raising, skipping = ranks(folder, **settings), ranks(folder, **settings, on_error="skip")
    whole, states = run_leg(skipping, Leg(batches=90))
    failed = [read_counts(state["counts"])[0, 6] for state in states]
    assert failed[1] == 0
    assert failed[-1] > 0
    rest, _ = run_leg(raising, Leg(batches=1), states[1])
    assert rest == whole[1:2]
    with pytest.raises(StreamChangedError, match=r"on_error \(doc.*: saved 'skip', found 'raise'"):
        run_leg(raising, Leg(), states[-1])
    with raising(batch_size=1) as loader:
        loader.load_state_dict(states[-1], on_change={"on_error": "accept"})
        again = loader.state_dict()
    assert "on_error" not in again
    more, _ = run_leg(skipping, Leg(batches=5), again)
    assert more == run_leg(skipping, Leg(batches=5), states[-1])[0]


def test_a_state_without_skips_has_the_keys_of_older_states(folder: Path) -> None:
    _, raising = run_leg(ranks(folder, transform=filters), Leg())
    _, skipping = run_leg(ranks(folder, transform=filters, on_error="skip"), Leg())
    assert skipping[-1].keys() - raising[-1].keys() == {"on_error"}
    assert skipping[-1]["counts"] == raising[-1]["counts"]
    damaged = {**skipping[-1], "on_error": 5}
    with pytest.raises(StreamChangedError, match="on_error: 5 is not one of"):
        run_leg(ranks(folder, transform=filters, on_error="skip"), Leg(), damaged)


def test_a_document_that_has_begun_and_fails_now_is_an_error_not_a_skip(folder: Path) -> None:
    has_changed = False

    def fail_later(sample: dict[str, Any]) -> str:
        if has_changed:
            raise ValueError("now")
        return str(sample["text"].decode())

    make = ranks(folder, transform=fail_later, transform_id="x", on_error="skip")
    _, states = run_leg(make, Leg(batches=7))
    has_changed = True
    with pytest.raises(CloudloadError, match=r"ValueError: now.*read a part of this document"):
        run_leg(make, Leg(), states[-1])


# ---------------------------------------------------------------- provenance


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (fails, r"on_error='skip' leaves out .*fails failed on .* \(id 'doc-17'\): Key"),
        (
            filters,
            r"transform, max_tokens, or min_tokens filters out sample \d+ of .* \(id 'doc-17'\)",
        ),
    ],
    ids=["skipped", "filtered"],
)
def test_where_says_why_a_document_is_in_no_step(
    folder: Path, tmp_path: Path, cli: Any, tokenizer_file: str, *, transform: Any, reason: str
) -> None:
    settings = {"tokenizer": tokenizer_file, "transform": transform, "epochs": 1}
    state = run_leg(ranks(folder, **settings, on_error="skip"), Leg(batches=1))[1][-1]
    (tmp_path / "state").write_text(json.dumps(state))
    assert open_run(state, transform=transform).arguments["on_error"] == "skip"
    command = ["where", tmp_path / "state", "--until", "500", "--workers", "0"]
    command += ["--local", folder / "cache", "--transform", f"{__name__}:{transform.__name__}"]
    printed = cli(*command, "--sample", "17", status=1)
    assert printed.out == ""
    assert re.search(reason, printed.err)
    printed = cli(*command, "--sample", "3")
    assert "sample 3  tokens 0:" in printed.out
    assert "the document" not in printed.err
