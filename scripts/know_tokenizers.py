"""Check tokenizers, and add those that pass to the table of known tokenizers.

    python -m scripts.know_tokenizers gpt2-folder llama3-folder

Each tokenizer is loaded twice, from its folder and as an object of the installed transformers,
because the resulting tokenizer.json may differ. For both, fastokens is compared with Hugging Face
`tokenizers` on the probes and on all 1,112,064 code points, which takes about 20 seconds. Those
that pass are added to `cloudload/rows/tokenization/known_tokenizers.json`, for the installed
versions of fastokens and tokenizers and for this kind of machine. Run this script again with each
combination of versions that the table covers. If a tokenizer fails, it is not added, and the exit
status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "cloudload" / "rows" / "tokenization" / "known_tokenizers.json"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokenizer", nargs="+", help="folder of a tokenizer")
    parser.add_argument(
        "--table",
        type=Path,
        default=TABLE,
        help="JSON file to update (default: known_tokenizers.json in the package)",
    )
    arguments = parser.parse_args()
    return max([know(Path(folder), arguments.table) for folder in arguments.tokenizer])


def know(folder: Path, table: Path) -> int:
    """Check a tokenizer, and add it to the table if it passes. Returns 1 if it fails, else 0."""
    from cloudload.data.cache.kept_tokenizers import digest_of
    from cloudload.rows.tokenization.backend import conditions, list_checked
    from cloudload.rows.tokenization.tokenizer import load_tokenizer

    passed: dict[str, str] = {}
    status = 0
    for name, source in sources(folder):
        text = load_tokenizer(source, [(None, None)]).json
        digest = digest_of([text])
        if digest in passed:
            print(f"{name}: has the same tokenizer.json as {passed[digest]}", flush=True)
        elif problem := find_problem(text):
            print(f"{name}: {problem}", flush=True)
            status = 1
        else:
            print(f"{name}: passes", flush=True)
            passed[digest] = name
    if passed:
        add(table, conditions(list_checked()), passed)
    return status


def sources(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield each object that a user may pass for this tokenizer, with its name for the table."""
    from transformers import AutoTokenizer

    yield folder.name, str(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    yield f"{folder.name}, an object of transformers {version('transformers')}", tokenizer


def find_problem(text: str) -> str | None:
    """Run the checks with which a loader chooses the backend, but on all code points.

    Returns the first problem, or None if there is none.
    """
    from cloudload.rows.tokenization.encoders import is_failure

    try:
        return find_difference(text)
    except BaseException as error:
        if not is_failure(error):
            raise
        return str(error)


def find_difference(text: str) -> str | None:
    """Run the checks of `find_problem`, but let errors of fastokens pass through."""
    from cloudload.rows.tokenization.backend import (
        find_probe_mismatch,
        find_unsupported_feature,
        sweep_code_points,
    )
    from cloudload.rows.tokenization.probes import all_code_points

    content = json.loads(text)
    if problem := find_unsupported_feature(content) or find_probe_mismatch(text, content):
        return problem
    found = sweep_code_points(text, all_code_points())
    return (
        f"fastokens and tokenizers have different IDs for {len(found):,} code points, such as "
        f"{found[:5]}"
        if found
        else None
    )


def add(table: Path, conditions: str, passed: dict[str, str]) -> None:
    """Add tokenizers to the table's entry for `conditions`. `passed` maps digests to names."""
    known = json.loads(table.read_text("utf-8")) if table.exists() else {}
    names = known.get(conditions, {}) | passed
    known[conditions] = dict(sorted(names.items(), key=lambda each: (each[1], each[0])))
    table.write_text(json.dumps(known, indent=2, sort_keys=False) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
