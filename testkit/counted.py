"""Datasets with token lengths.

count(folder)                             # of the byte tokenizer, in this process
write_counted(folder, ["aaa", "bb"])      # `write_mds`, and then `count`
"""

from __future__ import annotations

from os import PathLike
from typing import Any

from cloudload.tools.count import count_tokens
from cloudload.tools.count.length_report import CountReport
from testkit.corpora import byte_tokenizer, write_mds


def count(dataset: str | PathLike[str], **options: Any) -> CountReport:
    """Count the tokens of a dataset, and return the report."""
    defaults: dict[str, Any] = {"tokenizer": byte_tokenizer(), "processes": 1, "progress": False}
    report = count_tokens(dataset, **{**defaults, **options})
    assert report is not None
    return report


def write_counted(folder: str | PathLike[str], documents: Any, **options: Any) -> str:
    """Write documents as an MDS dataset, count its tokens, and return its location."""
    dataset = write_mds(folder, documents, **options)
    count(dataset)
    return dataset
