"""Render rows as one HTML page that needs no other file and no network.

    ViewedRow ─► values, as JSON in the page ─► rows.js draws the visible tokens

No data becomes markup, because the JSON is ASCII without `<`, `>` and `&`, the script inserts it as
text, and the page's security policy runs no other script.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from cloudload.segments import IGNORED_LABEL
from cloudload.system import Ints
from cloudload.tools.provenance.viewed_rows import ViewedRow, ViewedSpan

_MOST_CHARACTERS = 1 << 24
"""Maximum document characters on a page. Texts are cut to fit, so that the page opens quickly."""
_MOST_OF_DOCUMENT, _LEAST_OF_DOCUMENT = 200_000, 2_000


def render_rows(rows: Iterable[ViewedRow], title: str) -> str:
    """Render rows as an HTML page with a title.

    The page shows up to 200,000 characters of each document around its first span, or fewer if
    there are many long documents. Raises `ValueError` if there are no rows.
    """
    shown = list(rows)
    if not shown:
        raise ValueError("there are no rows to render. Choose steps that are in the run")
    folder = files("cloudload.tools.provenance") / "page"
    page, style, script = (
        (folder / f"rows.{suffix}").read_text("utf-8") for suffix in ("html", "css", "js")
    )
    digest = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    return Template(page).substitute(
        title=html.escape(title),
        style=style,
        script=script,
        digest=digest,
        data=_encode_json(_list_values(shown)),
    )


def _encode_json(values: Any) -> str:
    """Encode values as ASCII JSON that is safe in a script element, even with hostile strings."""
    text = json.dumps(values, separators=(",", ":"), default=str)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _list_values(rows: Sequence[ViewedRow]) -> dict[str, Any]:
    """Return the page's values: each token and document once, and rows that refer to them."""
    ids = np.unique(np.concatenate([row.input_ids for row in rows]))
    texts: dict[int, str] = {}
    special: set[int] = set()
    for row in rows:
        numbers = row.input_ids.tolist()
        texts.update(zip(numbers, row.texts, strict=True))
        special.update(numbers[index] for index in row.special)
    indices: dict[tuple[str, int], int] = {}
    firsts: list[ViewedSpan] = []
    for span in (span for row in rows for span in row.spans):
        if _key(span) not in indices:
            indices[_key(span)] = len(firsts)
            firsts.append(span)
    most = _MOST_CHARACTERS // max(1, len(firsts))
    most = min(_MOST_OF_DOCUMENT, max(_LEAST_OF_DOCUMENT, most))
    return {
        "ids": ids.tolist(),
        "texts": [texts[id] for id in ids.tolist()],
        "special": [index for index, id in enumerate(ids.tolist()) if id in special],
        "documents": [_describe_document(span, most) for span in firsts],
        "rows": [_describe_row(row, ids, indices) for row in rows],
    }


def _key(span: ViewedSpan) -> tuple[str, int]:
    return span.span.stream, span.span.sample


def _describe_document(first: ViewedSpan, most: int) -> dict[str, Any]:
    """Describe a document, with the part of its text around its first span on the page."""
    span, text = first.span, first.document.text
    middle = len(text) * span.start // max(1, first.document.num_tokens)
    start = max(0, min(middle - most // 2, len(text) - most))
    part = text[start : start + most]
    return {
        "stream": span.stream,
        "sample": span.sample,
        "id": None if span.id is None else str(span.id),
        "shard": span.shard,
        "num_tokens": first.document.num_tokens,
        "text": part,
        "before": start,
        "after": len(text) - start - len(part),
    }


def _describe_row(row: ViewedRow, ids: Ints, indices: dict[tuple[str, int], int]) -> dict[str, Any]:
    tokens = np.searchsorted(ids, row.input_ids).astype("<u4")
    return {
        "step": row.step,
        "row": row.row,
        "run_row": row.run_row,
        "length": row.length,
        "tokens": base64.b64encode(tokens.tobytes()).decode(),
        "masked": _list_ranges(row.labels == IGNORED_LABEL),
        "positions": _list_runs(row.position_ids),
        "spans": [
            {
                "place": each.row_start,
                "document": indices[_key(each)],
                "epoch": each.span.epoch,
                "start": each.span.start,
                "stop": each.span.stop,
            }
            for each in row.spans
        ],
    }


def _list_ranges(flags: Any) -> list[list[int]]:
    """List the ranges [start, stop) of true flags. Example: 0 1 1 0 1 returns 1 3, 4 5."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    ranges: list[list[int]] = edges.reshape(-1, 2).tolist()
    return ranges


def _list_runs(values: Ints) -> list[list[int]]:
    """List the runs that ascend by 1, as [place, value]. Example: 0 1 2 0 1 returns 0 0, 3 0."""
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(values) != 1) + 1])
    runs: list[list[int]] = np.column_stack([firsts, values[firsts]]).tolist()
    return runs
