"""The number of examples of a property test, from the variable `CLOUDLOAD_EXAMPLES`.

`make test-long` sets this variable.
"""

import os

EXAMPLES = int(os.environ.get("CLOUDLOAD_EXAMPLES", "5"))
