"""Compare the IDs of fastokens with those of Hugging Face `tokenizers` on every code point.

    python scripts/sweep_tokenizer.py gpt2-folder llama3-folder

Also runs the other checks with which a loader chooses the backend. A loader compares only the
assigned code points, once for each cache folder. This script compares all 1,112,064, which takes
about 15 seconds per tokenizer. Run it before you add a version to
`cloudload.rows.tokenization.backend.MEASURED_VERSIONS`. The exit status is 1 if any ID differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tokenizer",
        nargs="*",
        default=[str(ROOT / "examples" / "tokenizer")],
        help="folder of a tokenizer (default: examples/tokenizer)",
    )
    return max(sweep(name) for name in parser.parse_args().tokenizer)


def sweep(name: str) -> int:
    """Print the findings for one tokenizer. Returns 1 if the backends have different IDs."""
    from cloudload.rows.tokenization.backend import (
        find_probe_mismatch,
        find_unsupported_feature,
        sweep_code_points,
    )
    from cloudload.rows.tokenization.probes import all_code_points
    from cloudload.rows.tokenization.tokenizer import load_tokenizer

    text = load_tokenizer(name, [(None, None)]).json
    content = json.loads(text)
    refusal = find_unsupported_feature(content) or find_probe_mismatch(text, content)
    print(f"{name}: {refusal or 'passes the structure checks and the probes'}", flush=True)
    if refusal and "load" in refusal:
        return 0
    started, points = time.perf_counter(), all_code_points()
    found = sweep_code_points(text, points)
    shown = ", ".join(f"U+{point:04X}" for point in found[:10])
    seconds = time.perf_counter() - started
    print(
        f"{name}: fastokens has different IDs for {len(found):,} of {len(points):,} code points "
        f"({seconds:.1f} s)  {shown}",
        flush=True,
    )
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
