"""Read the documents of a benchmark, and write them in the forms that its sides read."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import random
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, note
from benchmarks.options import Options

TOKENIZER = ROOT / "examples" / "tokenizer"
_MOST_FILE_BYTES = 500_000


def add_documents(options: Options, megabytes: float = 24.0, quick: float = 0.5) -> None:
    """Add `--corpus`, `--tokenizer` and `--megabytes` to a benchmark's options."""
    options.add_argument(
        "--corpus",
        type=Path,
        metavar="FOLDER",
        help="folder of *.jsonl or *.jsonl.gz files with a `text` field (default: source and text "
        "files of this Python environment)",
    )
    options.add_argument(
        "--tokenizer",
        nargs="+",
        type=Path,
        default=[TOKENIZER],
        metavar="FOLDER",
        help="folders that contain a tokenizer.json (default: examples/tokenizer)",
    )
    options.add_amount("megabytes", megabytes, quick, "maximum megabytes of text")


# ---------------------------------------------------------------- read


def read_documents(args: argparse.Namespace) -> list[str]:
    """Return the documents of `--corpus`, up to `--megabytes`, in a fixed shuffle."""
    most_bytes = 1e6 * args.megabytes
    found = _read_corpus(args.corpus, most_bytes) if args.corpus else _read_environment(most_bytes)
    texts = list(found)
    random.Random(0).shuffle(texts)
    note(f"{len(texts):,} documents, {count_bytes(texts) / 1e6:.1f} MB: {describe_source(args)}")
    return texts


def count_bytes(texts: Iterable[str]) -> int:
    """Return the total size of the texts in UTF-8."""
    return sum(len(text.encode()) for text in texts)


def describe_source(args: argparse.Namespace) -> str:
    """Describe where the documents come from, for a report."""
    if args.corpus is None:
        return "source and text files of the Python environment"
    return ", ".join(file.name.split(".")[0] for file in _files_of(args.corpus))


def _files_of(corpus: Path) -> list[Path]:
    files = sorted(file for file in corpus.iterdir() if file.name.endswith((".jsonl", ".jsonl.gz")))
    if not files:
        raise SystemExit(
            f"{corpus} contains no *.jsonl or *.jsonl.gz files. Set --corpus to a folder that "
            "does, or omit --corpus"
        )
    return files


def _read_corpus(corpus: Path, most_bytes: float) -> Iterator[str]:
    """Yield a folder's documents, or the same share of each file if they exceed `most_bytes`."""
    sizes = {file: count_bytes(_read_file(file)) for file in _files_of(corpus)}
    share = min(1.0, most_bytes / sum(sizes.values()))
    for file, size in sizes.items():
        left = share * size
        for text in _read_file(file):
            left -= len(text.encode())
            if left < 0:
                break
            yield text


def _read_file(file: Path) -> Iterator[str]:
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
        for line in lines:
            yield json.loads(line)["text"]


def _read_environment(most_bytes: float) -> Iterator[str]:
    """Yield files of this Python environment. Their names alone decide which are chosen."""
    roots = [Path(sysconfig.get_path(name)) for name in ("purelib", "stdlib")]
    found = {
        path.relative_to(root).as_posix(): path
        for root in roots
        for path in root.rglob("*")
        if path.suffix in (".py", ".txt", ".md", ".rst")
    }
    for name in sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest()):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = found[name].read_text("utf-8")
            most_bytes -= len(text.encode())
            if most_bytes < 0:
                return
            if text and len(text) < _MOST_FILE_BYTES:
                yield text


def repeat(pool: Sequence[str], num_bytes: float) -> Iterator[dict[str, str]]:
    """Yield the pool's documents, shuffled differently in each pass, up to `num_bytes` in all."""
    draw = random.Random(0)
    while True:
        for text in draw.sample(pool, len(pool)):
            # a sample also stores the size of its text and an offset, 4 bytes each
            num_bytes -= len(text.encode()) + 8
            if num_bytes < 0:
                return
            yield {"text": text}


# ---------------------------------------------------------------- write


def write_dataset(texts: Iterable[str], folder: Path, **options: Any) -> str:
    """Write the texts as an MDS dataset, by default with 1 MiB shards. Returns its location."""
    from cloudload import convert_to_mds

    samples = iter([{"text": text} for text in texts])
    convert_to_mds(samples, folder, **{"shard_bytes": 1 << 20, "progress": False, **options})
    return str(folder)


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


def write_tokens(texts: Sequence[str], tokenizer: Path, eos: int, folder: Path) -> Path:
    """Tokenize the documents with Hugging Face `tokenizers`, and return `folder`.

    tokens.npy has the IDs, with an eos after each document. offsets.npy has the n + 1 bounds of the
    n documents.
    """
    import numpy as np
    from tokenizers import Tokenizer

    encoder: Any = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    encoder.no_truncation()
    encoder.no_padding()
    encoder.encode_special_tokens = True
    folder.mkdir()
    pieces = []
    for first in range(0, len(texts), 64):
        for encoding in encoder.encode_batch_fast(
            texts[first : first + 64], add_special_tokens=False
        ):
            pieces.append(np.array([*encoding.ids, eos], np.int32))
    np.save(folder / "tokens.npy", np.concatenate(pieces))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, pieces)]))
    return folder
