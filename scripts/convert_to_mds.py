"""Convert raw corpora to MDS from a checkout: `python scripts/convert_to_mds.py INPUT... OUT` is
the same as `cloudload convert`."""

import sys

from cloudload.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
