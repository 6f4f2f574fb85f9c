"""Each command of the recipes converts a stand-in with the layout and the columns of its corpus.

Stand-ins have nested folders, compressed files, null fields, and an empty and a large document.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from testkit import ROOT
from testkit.conversions import read_dataset
from testkit.fake_hub import FakeHub, as_the_hub
from testkit.web_server import Site, start_site

PAGE = (ROOT / "docs/guides/recipes.md").read_text()
COMMANDS = {
    re.findall(r"s3://b/\S+", line)[0]: line
    for line in re.findall(r"^cloudload convert .*", PAGE, re.M)
}
"""The commands of the page by output."""

LARGE = "large " * 200_000
Row = dict[str, Any]


def rows(name: str, text: str = "text", **fields: Any) -> list[Row]:
    """Three documents with the name of their file, of which one is empty and one is large."""
    texts = [f"{name} first", "", f"{name} {LARGE}"]
    return [{text: each, **fields} for each in texts]


def parquet(found: list[Row]) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), buffer)
    return buffer.getvalue()


def lines(found: list[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in found).encode()


def gz(found: list[Row]) -> bytes:
    return gzip.compress(lines(found))


def zst(found: list[Row]) -> bytes:
    return zstandard.compress(lines(found))


def card(**configs: list[tuple[str, str]]) -> bytes:
    """A dataset's card, with the splits and patterns of each config."""
    found = [
        {
            "config_name": name.replace("__", "-"),
            "data_files": [{"split": split, "path": path} for split, path in files],
        }
        for name, files in configs.items()
    ]
    return f"---\nconfigs: {json.dumps(found)}\n---\n# A card\n".encode()


WEB: Row = {"id": "urn:1", "url": "http://x", "language_score": 0.9, "score": None, "dump": "CC"}
CODE: Row = {"text": "content", "id": 7, "max_stars_repo_path": "a.py", "max_stars_count": None}
CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": LARGE}]

HUB: dict[str, Mapping[str, bytes]] = {
    "HuggingFaceFW/fineweb": {
        "README.md": card(
            default=[("train", "data/*/*")], sample__10BT=[("train", "sample/10BT/*")]
        ),
        "data/CC-MAIN-2013-20/000_00000.parquet": parquet(rows("one", **WEB)),
        "data/CC-MAIN-2024-10/000_00000.parquet": parquet(rows("two", **WEB)),
        "sample/10BT/000_00000.parquet": parquet(rows("no", **WEB)),
    },
    "HuggingFaceFW/fineweb-edu": {
        "README.md": card(
            default=[("train", "data/*/*")], sample__10BT=[("train", "sample/10BT/*")]
        ),
        "data/CC-MAIN-2013-20/train-00000.parquet": parquet(rows("no", **WEB)),
        "sample/10BT/000_00000.parquet": parquet(rows("one", **WEB | {"score": 2.5})),
    },
    "HuggingFaceFW/fineweb-2": {
        "README.md": card(
            deu_Latn=[("train", "data/deu_Latn/train/*"), ("test", "data/deu_Latn/test/*")],
            deu_Latn_removed=[("train", "data/deu_Latn_removed/train/*")],
        ),
        "data/deu_Latn/train/000_00000.parquet": parquet(rows("one", **WEB)),
        "data/deu_Latn/test/000_00000.parquet": parquet(rows("no", **WEB)),
        "data/deu_Latn_removed/train/000_00000.parquet": parquet(rows("no", **WEB)),
        "data/fra_Latn/train/000_00000.parquet": parquet(rows("two", **WEB)),
    },
    "HuggingFaceFW/finepdfs": {
        "data/eng_Latn/train/000_00000.parquet": parquet(rows("one", **WEB)),
        "data/eng_Latn/test/000_00000.parquet": parquet(rows("no", **WEB)),
    },
    "bigcode/starcoderdata": {
        "README.md": b"# StarCoderData",
        "python/train-00000-of-00059.parquet": parquet(rows("one", **CODE)),
        "go/train-00000-of-00025.parquet": parquet(rows("two", **CODE)),
        "julia/train-00000-of-00001.parquet": parquet(rows("three", **CODE)),
        "json/train-00000-of-00009.parquet": parquet(rows("four", **CODE)),
        "java/train-00000-of-00045.parquet": parquet(rows("five", **CODE)),
        "jupyter-scripts-dedup-filtered/train-0.parquet": parquet(rows("no", **CODE)),
        "git-commits-cleaned/train-0.parquet": parquet(rows("no", **CODE)),
        "github-issues-filtered-structured/train-0.parquet": parquet(rows("no", **CODE)),
    },
    "allenai/c4": {
        "README.md": card(en=[("train", "en/c4-train.*.json.gz")], realnewslike=[("train", "r/*")]),
        "en/c4-train.00000-of-01024.json.gz": gz(rows("one", url="u", timestamp="t")),
        "en/c4-validation.00000-of-00008.json.gz": gz(rows("no", url="u", timestamp="t")),
        "r/c4-train.00000-of-00512.json.gz": gz(rows("no", url="u", timestamp="t")),
    },
    "common-pile/wikimedia_filtered": {
        "README.md": b"",
        "wikimedia-0000.json.gz": gz(rows("one", id="1", metadata={"license": None})),
    },
    "allenai/tulu-3-sft-mixture": {
        "data/train-00000-of-00006.parquet": parquet([{"id": "1", "messages": CHAT, "source": "s"}])
    },
    "karpathy/climbmix-400b-shuffle": {
        "shard_00000.parquet": parquet(rows("one")),
        "shard_06001.parquet": parquet(rows("two")),
        "shard_06520.parquet": parquet(rows("three")),
        "shard_06541.parquet": parquet(rows("four")),
        "shard_06542.parquet": parquet(rows("no")),
    },
    "bigcode/the-stack-v2": {
        "data/Python/train-0.parquet": parquet(
            [{"blob_id": "1", "content_id": "2", "path": "/a.py", "src_encoding": "UTF-8"}]
        )
    },
}

SITE: dict[str, bytes] = {
    "c4-0000.json.gz": gz(rows("one", id="1", source="c4", metadata={})),
    "cc_en_head-0001.json.gz": gz(rows("two", id="2", source="cc", metadata=None)),
    "contrib/Nemotron/Nemotron-CC/data-jsonl.paths.gz": gzip.compress(b"contrib/N/a.jsonl.zstd\n"),
    "contrib/N/a.jsonl.zstd": zst(rows("one", warc_record_id="w-1", url="u")),
    "redpajama-data-v2/v1.0.0/documents/2023-06/0000/en_head.json.gz": gz(
        rows("one", "raw_content", url="u", date_download=None)
    ),
    "three/sorted/eng_Latn.map": b"# eng_Latn\nthree/sorted/eng_Latn/10_1.jsonl.zst\n",
    "three/sorted/eng_Latn/10_1.jsonl.zst": zst(rows("one", id="h", u="u", doc_scores=[1.0])),
}

DCLM: Row = {"url": "u", "metadata": {"WARC-Record-ID": "w-1"}, "fasttext_score": 0.5}
MIRROR: dict[str, bytes] = {
    "dclm/README.md": b"# DCLM",
    "dclm/global-shard_01/local-shard_0/shard_0_processed.jsonl.zst": zst(rows("one", **DCLM)),
    "dclm/global-shard_02/local-shard_9/shard_7_processed.jsonl.zst": zst(rows("two", **DCLM)),
    "dolma/urls/v1_7.txt": b"https://olmo-data.org/c4-0000.json.gz\ncc_en_head-0001.json.gz\n",
    "dolma3/common_crawl-science-0019/a.jsonl.zst": zst(rows("one", id="1", source="cc")),
    "dolma3/common_crawl-science-0019/SHA256SUMS": b"0123 a.jsonl.zst\n",
    "dolma3/olmocr_science_pdfs-health/a.jsonl.zst": zst(rows("two", id="1", source="pdf")),
}

NAMES = {
    **dict.fromkeys(["s3://b/fineweb", "s3://b/dclm", "s3://b/dolma"], ("one", "two")),
    "s3://b/climb": ("one", "two", "three", "four"),
}
"""The names of the files of outputs that have the documents of several files."""
PARTITIONS = {
    "s3://b/fw2": {"deu_Latn": "one", "fra_Latn": "two"},
    "s3://b/dolma3": {"common_crawl-science-0019": "one", "olmocr_science_pdfs-health": "two"},
    "s3://b/starcoder": {
        "python": "one",
        "go": "two",
        "julia": "three",
        "json": "four",
        "java": "five",
    },
}
"""The name of the file of each partition."""
IDS = {
    "s3://b/fineweb": "urn:1",
    "s3://b/dclm": "w-1",
    "s3://b/dolma": "1",
    "s3://b/ncc": "w-1",
    "s3://b/rpv2": "2023-06/0000/en_head.json.gz:1",
    "s3://b/c4": "en/c4-train.00000-of-01024.json.gz:1",
    "s3://b/hplt/eng": "h",
    "s3://b/tulu": "1",
    "s3://b/climb": "shard_00000.parquet:1",
}
"""The ID of the first document of some outputs."""


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture(scope="module")
def hub(hub_server: FakeHub) -> Iterator[FakeHub]:
    for name, files in HUB.items():
        hub_server.add(name, files)
    with as_the_hub(hub_server):
        yield hub_server


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    write(folder, SITE)
    with start_site(folder) as found:
        yield found


@pytest.fixture
def run(
    hub: FakeHub, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> Callable[..., Any]:
    """Run a command of the page, with hosts and buckets replaced by stand-ins."""
    assert hub.endpoint
    files = {
        name: re.sub(rb"https://[\w.-]+", site.url.encode(), data) if name.endswith("txt") else data
        for name, data in MIRROR.items()
    }
    write(tmp_path / "mirror", files)
    (tmp_path / "rpv2.txt").write_text("2023-06/0000/en_head.json.gz\n")
    monkeypatch.chdir(tmp_path)

    def run(command: str, status: int = 0) -> Any:
        command = re.sub(r"https://[\w.-]+", site.url, command)
        command = command.replace("$climb", "hf://datasets/karpathy/climbmix-400b-shuffle")
        command = command.replace("$code", "hf://datasets/bigcode/starcoderdata")
        command = command.replace("s3://b/", f"{tmp_path}/b/").replace("s3://mirror", "mirror")
        return cli(*shlex.split(command)[1:], "--processes", "1", status=status)

    return run


@pytest.mark.parametrize("out", [out for out in COMMANDS if out not in PARTITIONS])
def test_the_command_of_a_recipe_converts_its_corpus(
    out: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    run(COMMANDS[out])
    samples = read_dataset(out.replace("s3://", f"{tmp_path}/"), tmp_path)
    if out == "s3://b/tulu":
        assert [sample["messages"] for sample in samples] == [CHAT]
    else:
        names = NAMES.get(out, ("one",))
        expected = [text for name in names for text in (f"{name} first", f"{name} {LARGE}")]
        assert [sample["text"] for sample in samples] == expected
    assert samples[0]["id"] == IDS.get(out, samples[0]["id"])
    kept = re.findall(r"--keep (\S+)", COMMANDS[out])
    assert set(samples[0]) == {"id", *kept} | ({"text"} if out != "s3://b/tulu" else set())


@pytest.mark.parametrize("out", list(PARTITIONS))
def test_the_command_of_a_recipe_converts_each_partition(
    out: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    run(COMMANDS[out])
    folder = Path(out.replace("s3://", f"{tmp_path}/"))
    assert {path.name for path in folder.iterdir() if path.is_dir()} == PARTITIONS[out].keys()
    for partition, name in PARTITIONS[out].items():
        samples = read_dataset(f"{folder}/{partition}", tmp_path)
        assert [each["text"] for each in samples] == [f"{name} first", f"{name} {LARGE}"]
        assert set(samples[0]) == {"id", "text", *re.findall(r"--keep (\S+)", COMMANDS[out])}


def test_every_corpus_of_the_table_has_a_command() -> None:
    assert len(COMMANDS) == 15


def test_the_stack_v2_is_said_to_have_no_text(run: Callable[..., Any]) -> None:
    said = run("cloudload convert hf://bigcode/the-stack-v2 s3://b/stack --text-key content", 1)
    assert "only name files of the Software Heritage archive" in said.err
