"""What property tests draw: how many examples, and the packings.

The variable `CLOUDLOAD_EXAMPLES` sets the number of examples. `make test-long` sets this variable.
"""

import os
from typing import Any

EXAMPLES = int(os.environ.get("CLOUDLOAD_EXAMPLES", "5"))

PACKINGS: list[dict[str, Any]] = [
    {"packing": "concat"},
    {"packing": "best_fit", "open_rows": 3},
    {"packing": "one_per_row"},
    {"packing": "one_per_row", "overflow": "rows"},
]
"""Each way to pack rows. With few open rows, those of `best_fit` close soon."""
