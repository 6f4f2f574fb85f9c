"""Files of conversations to convert, with tools and awkward characters, and what they become."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

Row = dict[str, Any]

KEEP = ["messages", "tools:json", "source"]
"""The fields to keep of `make_rows`."""


def make_rows(count: int, seed: int = 1) -> list[Row]:
    """Make rows with `messages` of very different lengths, `source`, and in some rows `tools`."""
    draw = random.Random(seed)
    words = [
        "stone",
        "water",
        "Füchse",
        "狐",
        "🦊",
        "\x00",
        "<|endoftext|>",
        '"',
        "\\ud83d",
        "\r\n",
    ]
    rows = []
    for number in range(count):
        row: Row = {"id": f"{seed}-{number}", "source": f"web/{number % 3}"}
        turns = [" ".join(draw.choices(words, k=draw.randint(1, 40))) for _ in range(4)]
        roles = ["user", "assistant"] * draw.randint(1, 2)
        messages: list[Row] = [
            {"role": role, "content": text} for role, text in zip(roles, turns, strict=False)
        ]
        if number % 5 == 0:
            messages.insert(0, {"role": "system", "content": "Be brief."})
        if number % 7 == 0:
            call = {"name": "add", "arguments": {"a": number, "b": 0.5}}
            messages.append({"role": "assistant", "tool_calls": [{"function": call}]})
            row["tools"] = [{"type": "function", "function": {"name": "add"}}]
        rows.append(row | {"messages": messages})
    return rows


def list_rows(count: int = 240, first_seed: int = 1) -> list[Row]:
    """List the rows of the files of `write_chats`, in order."""
    return [row for number in range(3) for row in make_rows(count, first_seed + number)]


def write_chats(folder: Path, count: int = 240, first_seed: int = 1) -> None:
    """Write files of `count` conversations each: plain and gzipped JSON Lines, and Parquet."""
    folder.mkdir(parents=True)
    parts = [make_rows(count, first_seed + number) for number in range(3)]
    lines = [
        "".join(json.dumps(row, ensure_ascii=number == 1) + "\n" for row in part).encode()
        for number, part in enumerate(parts)
    ]
    (folder / "a.jsonl").write_bytes(lines[0])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines[1], mtime=0))
    table = pyarrow.Table.from_pylist(parts[2])
    pyarrow.parquet.write_table(table, folder / "c.parquet", row_group_size=20, compression="none")


def written(row: Row) -> Row:
    """The sample that a row of `make_rows` becomes with `KEEP`."""
    return {"id": row["id"], "source": row["source"]} | {
        "messages": row["messages"],
        "tools": row.get("tools"),
    }
