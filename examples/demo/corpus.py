"""Make the corpus of the demo from source files and texts of this Python environment."""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cloudload import convert_to_mds

SHARD_BYTES = 1 << 20
MOST_FILE_BYTES = 500_000


def progress(name: str, total: int, **options: Any) -> Any:
    """Create a progress bar, which prints a line every 10 s if stderr is not a terminal."""
    return tqdm(total=total, desc=name, mininterval=0.1 if sys.stderr.isatty() else 10.0, **options)


def collect_corpus(target: Path, most_bytes: int) -> None:
    """Write files of the environment as JSON Lines. Their names alone decide which are chosen."""
    paths = sysconfig.get_paths()
    roots = [Path(paths[name]).resolve() for name in ("purelib", "stdlib")]
    found = {
        path.relative_to(root).as_posix(): path
        for root in roots
        for path in root.rglob("*")
        if path.suffix in (".py", ".txt", ".md", ".rst")
        and not {"site-packages", "dist-packages"} & set(path.relative_to(root).parts)
    }
    # sort by a hash of the name, so that the files of different packages are mixed
    names = sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())
    num_documents, num_bytes = 0, 0
    with (
        target.open("w") as file,
        progress("collect", most_bytes, unit="B", unit_scale=True) as bar,
    ):
        for name in names:
            text = read_text(found[name])
            if text is None:
                continue
            file.write(json.dumps({"id": name, "text": text}) + "\n")
            num_documents, num_bytes = num_documents + 1, num_bytes + len(text)
            bar.update(len(text))
            if num_bytes >= most_bytes:
                break
    print(f"{num_documents:,} documents, {num_bytes / 1e6:.1f} million characters")


def read_text(path: Path) -> str | None:
    """Return the text of a file, or None if it is not text, is empty, or exceeds 500 kB."""
    try:
        if not 0 < path.stat().st_size <= MOST_FILE_BYTES:
            return None
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if text.strip() else None


def convert(corpus: Path, data: str) -> None:
    """Convert the corpus to MDS, like `cloudload convert corpus.jsonl s3://...`."""
    report = convert_to_mds([str(corpus)], data, shard_bytes=SHARD_BYTES)
    print(
        f"{report.documents:,} documents, {report.text_bytes / 1e6:.1f} MB of text, "
        f"{report.shards} shards, {report.stored_bytes / 1e6:.1f} MB stored, {report.seconds:.1f} s"
    )
