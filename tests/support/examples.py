"""The number of examples of a property test: `CLOUDLOAD_EXAMPLES`, which `make test-long` sets."""

import os

EXAMPLES = int(os.environ.get("CLOUDLOAD_EXAMPLES", "10"))
