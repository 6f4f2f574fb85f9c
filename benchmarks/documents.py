"""Make the documents of the benchmarks. `make bench` writes them in each form that a side reads.

texts/*.jsonl     JSON Lines, in eight files
mds/              the same documents as uncompressed MDS shards
tokens-NAME/      their token IDs from tokenizer NAME, with an eos after each document, in
                  tokens.npy; and the n + 1 bounds of the n documents in offsets.npy
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Options, note

NUM_FILES, SHARD_BYTES = 8, 4 << 20


@dataclass(frozen=True)
class Documents:
    """The documents that `lay_out` wrote to disk."""

    folder: Path
    source: str
    """A description of the documents' origin, for the report."""
    count: int
    num_bytes: int
    """The total size of the texts in UTF-8, in bytes."""


def lay_out(corpus: Path | None, folder: Path, most_bytes: float) -> Documents:
    """Write texts/ and mds/ from the corpus, or from the sources of this Python environment.

    Writes at most `most_bytes` of text, in a fixed shuffle. Replaces `folder`.
    """
    from cloudload import convert_to_mds

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "texts").mkdir(parents=True)
    texts = list(
        read_corpus(corpus, most_bytes) if corpus else read_environment(folder, most_bytes)
    )
    random.Random(0).shuffle(texts)
    for number in range(NUM_FILES):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[number::NUM_FILES]]
        (folder / "texts" / f"part-{number}.jsonl").write_text("".join(lines))
    samples = iter([{"text": text} for text in texts])
    convert_to_mds(
        samples, folder / "mds", compression=None, shard_bytes=SHARD_BYTES, progress=False
    )
    source = (
        ", ".join(name_of(file) for file in files_of(corpus))
        if corpus
        else "source and text files of the Python environment"
    )
    return Documents(folder, source, len(texts), sum(len(text.encode()) for text in texts))


def files_of(corpus: Path) -> list[Path]:
    """List the JSON Lines files of a folder. Raises `SystemExit` if there are none."""
    files = sorted(file for file in corpus.iterdir() if file.name.endswith((".jsonl", ".jsonl.gz")))
    if not files:
        raise SystemExit(
            f"{corpus} contains no *.jsonl or *.jsonl.gz files. Set --corpus to a folder that "
            "does, or omit --corpus"
        )
    return files


def name_of(file: Path) -> str:
    """Return a file's name without its extensions."""
    return file.name.split(".")[0]


def read_corpus(corpus: Path, most_bytes: float) -> Iterator[str]:
    """Yield a folder's documents, or the same share of each file if they exceed `most_bytes`."""
    sizes = {file: sum(len(text.encode()) for text in read_file(file)) for file in files_of(corpus)}
    share = min(1.0, most_bytes / sum(sizes.values()))
    for file, size in sizes.items():
        left = share * size
        for text in read_file(file):
            left -= len(text.encode())
            if left < 0:
                break
            yield text


def read_file(file: Path) -> Iterator[str]:
    """Yield the documents of one file."""
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
        for line in lines:
            yield json.loads(line)["text"]


def read_environment(folder: Path, most_bytes: float) -> Iterator[str]:
    """Yield about `most_bytes` of source files and texts of this Python environment."""
    from examples.demo.corpus import collect_corpus

    collect_corpus(folder / "environment.jsonl", int(most_bytes))
    yield from read_file(folder / "environment.jsonl")


def read_or_generate(corpus: Path | None, most_bytes: float) -> list[str]:
    """Return the documents of `corpus`, or generated ones if it is None, in a fixed shuffle."""
    texts = list(read_corpus(corpus, most_bytes) if corpus else generate_texts(most_bytes))
    random.Random(0).shuffle(texts)
    note(f"{len(texts):,} documents, {sum(len(text.encode()) for text in texts) / 1e6:.1f} MB")
    return texts


def generate_texts(num_bytes: float) -> Iterator[str]:
    """Generate documents of random words whose frequencies follow Zipf's law, as in a language."""
    draw = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(draw.choices(letters, k=draw.randint(1, 10))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    while num_bytes > 0:
        text = " ".join(draw.choices(words, weights, k=draw.randint(20, 1500)))
        num_bytes -= len(text)
        yield text


def write_dataset(texts: Iterable[str], folder: Path) -> str:
    """Write the texts as an MDS dataset with 1 MiB shards, and return its location."""
    from cloudload import convert_to_mds

    samples = iter([{"text": text} for text in texts])
    convert_to_mds(samples, folder, shard_bytes=1 << 20, progress=False)
    return str(folder)


def add_documents(options: Options, megabytes: float = 24.0) -> None:
    """Add `--corpus`, `--tokenizer` and `--megabytes` to a benchmark's options."""
    options.add_argument(
        "--corpus",
        type=Path,
        metavar="FOLDER",
        help="folder of *.jsonl or *.jsonl.gz files (default: generated text)",
    )
    options.add_argument(
        "--tokenizer",
        nargs="+",
        type=Path,
        default=[ROOT / "examples" / "tokenizer"],
        metavar="FOLDER",
        help="folders that contain a tokenizer.json (default: examples/tokenizer)",
    )
    options.add_amount("megabytes", megabytes, 0.5, "maximum megabytes of text")


def beside(name: str) -> Path | None:
    """Return the folder ../shared/`name` next to the repository, or None if it does not exist."""
    folder = ROOT.parent / "shared" / name
    return folder if folder.is_dir() else None


def find_tokenizers(folder: Path | None, names: list[str], work: Path) -> list[Path]:
    """Return the folders of the named tokenizers. If `folder` is None, trains one in `work`.

    Raises `SystemExit` if a tokenizer has no tokenizer.json.
    """
    if folder is None:
        command = [sys.executable, "-m", "scripts.train_tokenizer", str(work / "trained-4096")]
        subprocess.run(command, cwd=ROOT, check=True)
        return [work / "trained-4096"]
    found = [folder / name for name in names]
    if missing := [path.name for path in found if not (path / "tokenizer.json").exists()]:
        raise SystemExit(
            f"{folder} has no tokenizer.json for {', '.join(missing)}. Choose other tokenizers "
            "with --name or --names, or set --tokenizers to a different folder"
        )
    return found


def framing_of(tokenizer: Path) -> tuple[int, tuple[int, ...]]:
    """Return the eos ID, and all IDs that frame a document: eos, and bos if there is one.

    Raises `SystemExit` if the tokenizer has no eos.
    """
    from cloudload.rows.tokenization.tokenizer import load_tokenizer

    bos, eos = load_tokenizer(str(tokenizer)).frames[0]
    if eos is None:
        raise SystemExit(
            f"the tokenizer {tokenizer.name} has no eos token. Choose one that has an eos"
        )
    return eos, tuple({eos} | ({bos} if bos is not None else set()))


def write_tokens(documents: Documents, tokenizer: Path, eos: int) -> Path:
    """Tokenize the documents with Hugging Face `tokenizers`, and return the folder tokens-NAME."""
    import numpy as np
    from tokenizers import Tokenizer

    encoder: Any = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    encoder.no_truncation()
    encoder.no_padding()
    encoder.encode_special_tokens = True
    folder = documents.folder / f"tokens-{tokenizer.name}"
    folder.mkdir()
    pieces = []
    for file in sorted((documents.folder / "texts").glob("*.jsonl")):
        texts = list(read_file(file))
        for first in range(0, len(texts), 64):
            encodings = encoder.encode_batch_fast(
                texts[first : first + 64], add_special_tokens=False
            )
            pieces += [np.array([*encoding.ids, eos], np.int32) for encoding in encodings]
    np.save(folder / "tokens.npy", np.concatenate(pieces))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, pieces)]))
    return folder
