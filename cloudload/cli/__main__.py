"""Run the command line with `python -m cloudload.cli`."""

import sys

from cloudload.cli import main

sys.exit(main())
