"""How many examples a property test searches: `CLOUDLOAD_EXAMPLES`, as `make test-long` sets it."""

import os

EXAMPLES = int(os.environ.get("CLOUDLOAD_EXAMPLES", "10"))
