"""The options of a loader, in two configs. Each option is defined and documented once.

    CloudLoader(…) ─┬─► RowsConfig          which tokens, in which order; most may not change on
                    │     └─► Stream        resume
                    └─► DeliveryConfig      how rows are delivered; may always change

    rows       `RowsConfig`                   choices      accepted values
    delivery   `DeliveryConfig`               checks       errors for wrong values
    stream     `Stream`, names of streams     code_digest  a digest of a function's code
    transform  `Text`, names of transforms    chat         `Chat`
    source     what documents are made of     encode       `TokenIds`, `EncodeContext`
    fim        `Fim`                          row_hook   `RowContext`

`cloudload.system.option_help` turns the docstring below each field into help and documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudload._door import open_door

if TYPE_CHECKING:
    from cloudload.config import checks, choices
    from cloudload.config.chat import Chat
    from cloudload.config.checks import parse_bytes
    from cloudload.config.choices import (
        OnError,
        Overflow,
        PackingName,
        ShuffleAlgorithm,
        StartMethod,
        Stopping,
        TailMode,
        TokenDtype,
        TokenizerBackend,
        Verification,
    )
    from cloudload.config.delivery import DeliveryConfig, alone, settle_together
    from cloudload.config.encode import Encode, EncodeContext, TokenIds
    from cloudload.config.fim import Fim
    from cloudload.config.row_hook import RowContext, RowHook
    from cloudload.config.rows import MAX_LANES, TEXT_KEY, RowsConfig
    from cloudload.config.source import DocumentSource, TokensColumn, read_given_id
    from cloudload.config.stream import Stream, as_streams, name_streams
    from cloudload.config.transform import Spans, Text, Transform, show_function
else:
    __getattr__, __dir__ = open_door(__name__)
