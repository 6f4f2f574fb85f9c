"""Look up tokenizers that are known to pass every fastokens check, so nodes can skip the checks.

    known_tokenizers.json    {checks, versions, and machine: {digest: name}}

    "checks-2-fastokens-0.3.5-tokenizers-0.22.2-x86_64": {"<32 hex digits>": "gpt2", …}

A digest is computed as for a kept result, and covers the whole tokenizer.json. The table is written
by `scripts/know_tokenizers.py`, which compares all code points. Therefore an entry, unlike a kept
result, does not depend on the version of Unicode. Workers still compare a sample of the IDs with hf
during a run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import platform
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import cast

from cloudload.data.cache.kept_tokenizers import digest_of

TABLE_NAME = "known_tokenizers.json"


def is_known(text: str, checked: Iterable[str]) -> bool:
    """Whether the tokenizer.json `text` is known to pass on this CPU architecture.

    `checked` are the names and versions of the checks and of the packages that they compare.
    """
    digests = read_table().get(conditions(checked))
    return digests is not None and digest_of([text]) in digests


def conditions(checked: Iterable[str]) -> str:
    """The table's key for this CPU architecture and the versions `checked`; see `is_known`."""
    return "-".join([*checked, platform.machine()])


@functools.cache
def read_table() -> Mapping[str, Mapping[str, str]]:
    """Read the table: {conditions: {digest: tokenizer name}}. Empty if its file is missing."""
    with contextlib.suppress(OSError):  # a program may be packaged without data files
        text = files("cloudload.rows.tokenization").joinpath(TABLE_NAME).read_text("utf-8")
        return cast("dict[str, dict[str, str]]", json.loads(text))
    return {}
