"""Check tokenizers, and add them to the table of tokenizers that are known to pass.

    python scripts/know_tokenizers.py gpt2-folder llama3-folder

Each one is loaded from its folder and as an object of the installed transformers, because their
tokenizer.json may differ. Both are compared on the probes and on all 1,112,064 code points, in some
20 seconds each. The table, `cloudload/tokenization/known_tokenizers.json`, then has entries for the
installed versions of fastokens and tokenizers and for this kind of machine. Run this again with
each combination of versions that the table covers. A tokenizer that fails is not added, and the
exit status is then 1.
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
TABLE = ROOT / "cloudload" / "tokenization" / "known_tokenizers.json"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokenizer", nargs="+", help="a folder")
    parser.add_argument("--table", type=Path, default=TABLE, help="default: the package's")
    arguments = parser.parse_args()
    return max([know(Path(folder), arguments.table) for folder in arguments.tokenizer])


def know(folder: Path, table: Path) -> int:
    """Add a tokenizer to the table. Return 1 if it does not pass."""
    from cloudload.tokenization.backend import list_checked
    from cloudload.tokenization.kept_files import digest_of
    from cloudload.tokenization.known import conditions
    from cloudload.tokenization.tokenizer import load_tokenizer

    passed: dict[str, str] = {}
    status = 0
    for name, source in sources(folder):
        text = load_tokenizer(source, [(None, None)]).json
        digest = digest_of([text])
        if digest in passed:
            print(f"{name}: the same as {passed[digest]}", flush=True)
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
    """What a user may pass for this tokenizer, each with a name for the table."""
    from transformers import AutoTokenizer

    yield folder.name, str(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    yield f"{folder.name}, an object of transformers {version('transformers')}", tokenizer


def find_problem(text: str) -> str | None:
    """Make every check of the backend choice, on all code points. Return the problem or None."""
    from cloudload.tokenization.encoders import is_failure

    try:
        return find_difference(text)
    except BaseException as error:
        if not is_failure(error):
            raise
        return str(error)


def find_difference(text: str) -> str | None:
    """Return the problem or None, like `find_problem`. Raises the errors of fastokens."""
    from cloudload.tokenization.backend import find_probe_mismatch, sweep_code_points
    from cloudload.tokenization.features import find_unsupported_feature
    from cloudload.tokenization.probes import all_code_points

    content = json.loads(text)
    if problem := find_unsupported_feature(content) or find_probe_mismatch(text, content):
        return problem
    found = sweep_code_points(text, all_code_points())
    return f"{len(found):,} code points have different IDs, such as {found[:5]}" if found else None


def add(table: Path, conditions: str, passed: dict[str, str]) -> None:
    """Add names by digest to the table's entry for `conditions`."""
    known = json.loads(table.read_text("utf-8")) if table.exists() else {}
    names = known.get(conditions, {}) | passed
    known[conditions] = dict(sorted(names.items(), key=lambda each: (each[1], each[0])))
    table.write_text(json.dumps(known, indent=2, sort_keys=False) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
