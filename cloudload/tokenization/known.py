"""Tokenizers known to pass every check of fastokens, so that no node needs to run the checks.

    known_tokenizers.json    {checks, versions, and machine: {digest: name}}

    "checks-2-fastokens-0.3.5-tokenizers-0.22.2-x86_64": {"<32 hex digits>": "gpt2", …}

A digest is that of a kept result: it covers the whole tokenizer.json. `scripts/know_tokenizers.py`
writes the table from a comparison of all code points, so that, unlike a kept result, an entry does
not depend on the version of Unicode. Workers still compare a sample of the IDs with hf during a
run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import platform
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import cast

from cloudload.tokenization.kept_files import digest_of

TABLE_NAME = "known_tokenizers.json"


def is_known(text: str, checked: Iterable[str]) -> bool:
    """Whether the tokenizer.json `text` is known to pass on this kind of machine.

    `checked` are the names and versions of the checks and of the packages that they compare.
    """
    digests = read_table().get(conditions(checked))
    return digests is not None and digest_of([text]) in digests


def conditions(checked: Iterable[str]) -> str:
    """The key of the table for `checked`, as for `is_known`, on this kind of machine."""
    return "-".join([*checked, platform.machine()])


@functools.cache
def read_table() -> Mapping[str, Mapping[str, str]]:
    """Read the table: for each of the `conditions`, names by digest. Empty if it is missing."""
    with contextlib.suppress(OSError):  # as in a program packed without data files
        text = files("cloudload.tokenization").joinpath(TABLE_NAME).read_text("utf-8")
        return cast("dict[str, dict[str, str]]", json.loads(text))
    return {}
