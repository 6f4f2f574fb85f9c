"""A lane reads about as many documents as its next rows need."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload.loading.workers import processes
from cloudload.loading.workers.bad_documents import Doubt, TextCheck, reason_to_doubt
from cloudload.loading.workers.documents import open_cache, open_documents
from cloudload.loading.workers.lane_reader import LaneReader
from cloudload.loading.workers.processes import end_workers
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"packing": "one_per_row", "seq_len": 1024}, 3),
        ({"packing": "one_per_row", "seq_len": 16}, 3),
        ({"packing": "one_per_row", "seq_len": 1024, "overflow": "rows"}, 3),
        ({"packing": "one_per_row", "seq_len": 16, "overflow": "rows"}, 3),
        ({"packing": "concat", "seq_len": 16}, 3),
        ({"packing": "concat", "seq_len": 1024}, 64),
    ],
)
def test_three_rows_of_each_lane_need_no_more_documents_than(
    tmp_path: Path, settings: dict[str, Any], most: int
) -> None:
    data = write_mds(tmp_path / "data", random_documents(1, 2_000))
    lanes = np.arange(12)
    with make_loader(data, local=tmp_path / "cache", **settings) as loader:
        plan = loader.worker_plan()
        cache = open_cache(plan.inputs, plan.delivery)
        reader = LaneReader(plan, 0, open_documents(plan.inputs, cache))
        cut = reader.cut(lanes, np.full(12, 3), num_batches=1, is_awaited=False)
        cache.close()
    assert cut.num_rows.tolist() == [3] * 12
    assert reader.next_ordinals.max() <= most


def test_many_rounds_of_reading_do_not_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.loading.workers.lane_reader.MOST_DOCUMENTS_OF_LANE", 1)
    data = write_mds(tmp_path / "data", ["a"] * 4)
    options = {"seq_len": 2_200, "num_lanes": 1, "batch_size": 1}
    with make_loader(data, local=tmp_path / "cache", **options) as loader:
        batch = next(iter(loader.take(1)))
    assert batch["input_ids"].shape == (1, 2_200)


# ---------------------------------------------------------------- the end of workers


class KilledWorker:
    """A fake worker that reports that it had to be killed."""

    is_own = True

    def ask_to_end(self) -> None:
        pass

    def end(self, deadline: float) -> bool:
        return True


def test_the_cleanup_of_a_large_cache_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, swept = threading.Event(), threading.Event(), threading.Event()

    def sweep(root: Path) -> None:
        assert root == tmp_path
        begun.set()
        may_end.wait()
        swept.set()

    monkeypatch.setattr("cloudload.data.cache.cache_folder.sweep", sweep)
    monkeypatch.setattr(processes, "SWEEP_S", 0.01)
    worker: Any = KilledWorker()
    end_workers([worker], tmp_path)
    assert begun.wait(60)
    assert not swept.is_set()
    may_end.set()
    assert swept.wait(60)


# ---------------------------------------------------------------- texts


PROSE = "The quick brown fox jumps over the lazy dog, and says so. " * 20
IDS = np.random.default_rng(0).integers(0, 50_000, 500)
DNA = "".join(random.Random(0).choices("ACGT", k=2_000))
WORDS = np.random.default_rng(0).integers(0, 128, 500)

NOT_TEXT = {
    "token IDs of int64": WORDS.astype("<i8").tobytes().decode(),
    "token IDs of uint16": WORDS.astype("<u2").tobytes().decode(),
    "UTF-16": PROSE.encode("utf-16-le").decode(),
    "gzip as Latin-1": gzip.compress(json.dumps(IDS.tolist()).encode()).decode("latin-1"),
    "token IDs as Latin-1": IDS.astype("<i4").tobytes().decode("latin-1"),
    "a pickle as Latin-1": pickle.dumps(IDS).decode("latin-1"),
    "gzip with replacements": gzip.compress(IDS.tobytes()).decode(errors="replace"),
    "GBK with replacements": ("敏捷的棕色狐狸" * 50).encode("gbk").decode(errors="replace"),
    "base64": base64.b64encode(gzip.compress(PROSE.encode() + IDS.tobytes())).decode(),
    "base64 of token IDs": base64.b64encode(IDS.astype("<i8").tobytes()).decode(),
    "base64 of text": base64.b64encode(PROSE.encode()).decode(),
    "token IDs in words": " ".join(map(str, IDS.tolist())),
    "token IDs as JSON": json.dumps(IDS.tolist()),
    "token IDs in lines": "".join(f"{each}\n" for each in IDS.tolist()),
    "base64 in lines": base64.encodebytes(IDS.tobytes()).decode(),
}

TEXT = {
    "English": PROSE,
    "Chinese": "敏捷的棕色狐狸跳过了懒狗。" * 50,
    "Arabic": "الثعلب البني السريع يقفز فوق الكلب الكسول. " * 50,
    "Thai": "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ" * 50,
    "Persian, with joiners": "می\u200cخواهم بروم. " * 50,  # noqa: RUF001
    "right-to-left marks": "\u200fשלום\u200e עולם " * 50,  # noqa: RUF001
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈🦊👍🏽" * 100,
    "Python": "def f(x):\n\treturn {y: x[y] ** 2 for y in range(len(x))}\r\n" * 30,
    "JSON": json.dumps({"ids": IDS.tolist(), "text": "a\x00b\u0001"}),
    "minified JavaScript": "!function(e,t){var n=e.x||0;t&&(n+=1);return n*2}(a,b);" * 50,
    "ASCII art": "\n".join(["+" + "-" * 90 + "+", "|" + " " * 90 + "|", "=" * 92] * 10),
    "box drawing": "┌──┬──┐\n│░▒▓█│\n└──┴──┘\n" * 30,
    "terminal colors": "\x1b[31mred\x1b[0m \x1b[1;32mgreen\x1b[0m\n" * 30,
    "a man page": "N\x08NA\x08AM\x08ME\x08E\n  ls \x0c" * 30,
    "old line ends": "one\x85two\x0bthree\rfour\n" * 50,
    "DNA": DNA,
    "hexadecimal digits": bytes(range(256)).hex() * 4,
    "a few integers": "[1, 2, 3, 5, 8, 13]",
    "a table": "".join(f"{each}\t{each % 7}\tyes\n" for each in IDS.tolist()),
    "sums": "".join(f"{each} + 1 = {each + 1}\n" for each in IDS.tolist()),
    "digits": "3.14159265 " * 100 + "1" * 200,
    "URLs": "https://example.com/2023/11/a-long-title-of-an-article-with-Many-words-in-it\n" * 30,
    "paths": "/usr/lib/python3/site/packages/Some/Package/with/Many/deep/folders/below/Each9\n"
    * 30,
    "identifiers": "AbstractSingletonProxyFactoryBeanDefinitionReaderDelegateVisitor1 " * 9,
    "a page with an image": f'<p>{PROSE}</p><img src="data:image/png;base64,{"iVBORw0KGgo" * 50}">',
    "a page in a wrong encoding, in part": PROSE + "caf\ufffd " * 8,
    "mathematics": "∀x∈ℝ: x²≥0 ∧ ∑ᵢ aᵢ ≤ ∞ ⇒ 𝔼[X] = μ " * 30,  # noqa: RUF001
    "short": "\x00\x01",
    "empty": "",
}


@pytest.mark.parametrize("kind", NOT_TEXT)
def test_what_is_not_text_is_doubted(kind: str) -> None:
    assert reason_to_doubt(NOT_TEXT[kind])


@pytest.mark.parametrize("kind", TEXT)
def test_honest_text_is_not_doubted(kind: str) -> None:
    assert reason_to_doubt(TEXT[kind]) is None


def look(check: TextCheck, stream: int, *texts: str | None) -> Doubt | None:
    return check.look(stream, np.arange(len(texts)), texts)


@pytest.mark.parametrize(("num_bad", "is_doubted"), [(0, False), (2, False), (3, True), (4, True)])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_stream_is_doubted_if_most_of_its_first_documents_are(
    num_bad: int, is_doubted: bool, at_once: bool
) -> None:
    check, documents = TextCheck([0, 1]), ["\0" * 80] * num_bad + [None] + [PROSE] * 4
    if at_once:
        doubts = [look(check, 1, *documents)]
    else:
        doubts = [look(check, 1, document) for document in documents]
    assert sum(doubt is not None for doubt in doubts) == is_doubted
    assert look(check, 1, *["\0" * 80] * 20) is None
    assert not check.is_over
    assert look(check, 0, *[PROSE] * 3) is None
    assert look(check, 0, PROSE, *["\0" * 80] * 20) is None
    assert check.is_over


def test_a_doubt_names_a_doubtful_document_and_shows_its_start() -> None:
    assert look(TextCheck([0]), 0, PROSE, *["\1\2 狐" * 20] * 3) == Doubt(
        1, "has 50% NUL and control characters", ascii("\1\2 狐" * 10)
    )
