"""The options of a loader, in two configs. Each option is defined and documented once.

    options ─► read_options ─► RowsConfig          which tokens, in which order; most may not
                           │     └─► Stream        change on resume
                           └─► DeliveryConfig      how rows are delivered; may always change

    rows       `RowsConfig`                   options      split options into the configs
    delivery   `DeliveryConfig`               choices      accepted values
    stream     `Stream`, names of streams     checks       errors for wrong values
    transform  `Text`, names of transforms    code_digest  a digest of a function's code

`cloudload.system.option_help` turns the docstring below each field into help and documentation.
"""

from __future__ import annotations

from cloudload.config.checks import parse_bytes as parse_bytes
from cloudload.config.delivery import DeliveryConfig as DeliveryConfig
from cloudload.config.options import read_options as read_options
from cloudload.config.rows import RowsConfig as RowsConfig
from cloudload.config.stream import Stream as Stream
from cloudload.config.transform import Transform as Transform
