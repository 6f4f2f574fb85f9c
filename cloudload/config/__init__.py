"""The options of a loader, in two configs. Each option is defined and documented once.

    RowsConfig        which tokens, in which order; most may not change on resume
      Stream            a dataset: location, share, boundary tokens
      transform         a function from a sample to its text, and the name that identifies it
    DeliveryConfig    how rows are delivered; may change on every resume

    options ─► read_options ─► RowsConfig, DeliveryConfig
                                 ▲
                                 checks, choices (the accepted values)

`cloudload.option_docs` turns the docstring below each field into help and documentation.
"""

from __future__ import annotations

from cloudload.config.checks import parse_bytes as parse_bytes
from cloudload.config.delivery import DeliveryConfig as DeliveryConfig
from cloudload.config.options import read_options as read_options
from cloudload.config.rows import RowsConfig as RowsConfig
from cloudload.config.stream import Stream as Stream
from cloudload.config.transform import Transform as Transform
