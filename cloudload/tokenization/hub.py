"""Tokenizers by name on the Hugging Face Hub, or in its cache if the Hub cannot be reached."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

from cloudload.errors import TokenizerError
from cloudload.storage.hub import find_obstacle

logger = logging.getLogger(__name__)


def load_by_name(name: str) -> tuple[Any, Path | None]:
    """Load the tokenizer `name`, and find the folder of its files, if it has a tokenizer.json.

    `name` may also be a folder without a tokenizer.json. Returns a transformers tokenizer. Raises
    `TokenizerError` if it cannot be loaded.
    """
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    obstacle = None if Path(name).exists() else find_obstacle()
    options = {"local_files_only": True} if obstacle else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, use_fast=True, trust_remote_code=False, **options
        )
    except (OSError, ValueError, KeyError) as error:
        raise TokenizerError(_explain(name, error, obstacle)) from None
    if obstacle:
        logger.warning("%s, so the tokenizer %r is from the local cache", obstacle, name)
    with contextlib.suppress(OSError):  # not all tokenizers have the file
        return tokenizer, Path(cached_file(name, "tokenizer.json", **options)).parent
    return tokenizer, None


def _explain(name: str, error: Exception, obstacle: str | None) -> str:
    advice = "Pass a name on the Hugging Face Hub, a folder, or a tokenizer.json"
    if obstacle:
        return (
            f"cannot load the tokenizer {name!r}: {obstacle}, and it is not in the local cache. "
            "Pass a folder or a tokenizer.json, or load it once on a machine with a connection "
            "and copy the cache (HF_HOME)"
        )
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(". ")
    return f"cannot load the tokenizer {name!r}: {reason}. {advice}"
