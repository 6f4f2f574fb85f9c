"""Raw corpora to MDS, from a checkout: `python scripts/convert_to_mds.py INPUT... OUT`, the same as
`cloudload convert`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cloudload.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
