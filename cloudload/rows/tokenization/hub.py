"""Load tokenizers from the Hugging Face Hub, or from the local cache if the Hub is unreachable."""

from __future__ import annotations

import contextlib
import logging
import os
import textwrap
from pathlib import Path
from typing import Any

from cloudload.data.storage.hub import find_obstacle
from cloudload.data.storage.redaction import redact
from cloudload.errors import TokenizerError

logger = logging.getLogger("cloudload.tokenizer")
_MOST_REASON = 200
_CACHES_OF_TRANSFORMERS = (
    "TRANSFORMERS_CACHE",
    "PYTORCH_TRANSFORMERS_CACHE",
    "PYTORCH_PRETRAINED_BERT_CACHE",
)


def load_by_name(name: str) -> tuple[Any, Path | None]:
    """Load a tokenizer with transformers.

    `name` is a name on the Hub, or a folder without a tokenizer.json. Returns the transformers
    tokenizer, and the folder of its tokenizer.json, or None if it has none. Raises `TokenizerError`
    if the tokenizer cannot be loaded.
    """
    obstacle = None if Path(name).exists() else find_obstacle()
    if obstacle and _is_absent_from_cache(name):
        raise TokenizerError(_explain_offline(redact(name), obstacle))
    from transformers import AutoTokenizer  # this import takes seconds
    from transformers.utils import cached_file

    options = {"local_files_only": True} if obstacle else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, use_fast=True, trust_remote_code=False, **options
        )
    except (OSError, ValueError, KeyError) as error:
        shown = redact(name)
        explained = _explain_offline(shown, obstacle) if obstacle else _explain(shown, error)
        raise TokenizerError(explained) from None
    if obstacle:
        logger.warning("%s, so the tokenizer %r is loaded from the local cache", obstacle, name)
    with contextlib.suppress(OSError):  # some tokenizers have no tokenizer.json
        return tokenizer, Path(cached_file(name, "tokenizer.json", **options)).parent
    return tokenizer, None


def _is_absent_from_cache(name: str) -> bool:
    """Whether the Hub's cache has no folder for `name`; False if an environment variable makes
    transformers use a separate cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    if any(variable in os.environ for variable in _CACHES_OF_TRANSFORMERS):
        return False
    return not Path(
        constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model")
    ).exists()


def _explain_offline(name: str, obstacle: str) -> str:
    return (
        f"cannot load the tokenizer {name!r}, because {obstacle} and the tokenizer is not in the "
        "local cache. Pass a folder or a tokenizer.json, or load the tokenizer once on a machine "
        "that can reach the Hub and copy that machine's cache (HF_HOME)"
    )


def _explain(name: str, error: Exception) -> str:
    first = (str(error).splitlines() or [type(error).__name__])[0]
    reason = textwrap.shorten(first, _MOST_REASON, placeholder=" …").rstrip(". ")
    if "sentencepiece" in str(error).lower():
        return (
            f"cannot load the tokenizer {name!r}, because it has no tokenizer.json, and its "
            "tokenizer.model cannot be converted. Install what the conversion needs: pip install "
            "sentencepiece protobuf tiktoken"
        )
    if Path(name).exists():
        advice = "Pass a folder that has a tokenizer.json, or that transformers can load"
    else:
        advice = "Pass a name on the Hugging Face Hub, a folder, or a tokenizer.json"
    return f"cannot load the tokenizer {name!r}: {redact(reason)}. {advice}"
