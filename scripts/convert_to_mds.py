"""Convert raw corpora to MDS from a checkout, with the options of `cloudload convert`.

    python scripts/convert_to_mds.py INPUT... OUT

The script has the name that users of MosaicML Streaming look for.
"""

import sys

from cloudload.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
