"""Run the command line with `python -m cloudload`."""

import sys

from cloudload.tools.cli import main

sys.exit(main())
