"""The fields of a conversion can be pickled, and the command line offers all input formats."""

from __future__ import annotations

import pickle

from cloudload.config.choices import INPUT_FORMATS
from cloudload.tools.cli.convert_command import FORMATS
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.input_records import Fields


def test_fields_are_names_with_the_encodings_that_were_given() -> None:
    fields = ConvertConfig(text_key="body", keep=("n:int32", "source")).fields()
    assert tuple(fields) == ("body", "id", "n", "source")
    assert fields.encodings == {"n": "int32"}
    for copy in (pickle.loads(pickle.dumps(fields)), Fields(fields, fields.encodings)):
        assert tuple(copy) == tuple(fields)
        assert copy.encodings == {"n": "int32"}


def test_the_command_line_offers_every_format() -> None:
    assert FORMATS == INPUT_FORMATS
