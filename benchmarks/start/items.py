"""Measure how many documents `Documents` reads per second, from a store and from the cache.

    python -m benchmarks.start.items --corpus FOLDER

The data is on an S3 server on this machine, behind a proxy that delays every request by
--latency-ms. Each line of the table starts with a new `Documents`, which reads --items documents.

order      `in order` reads the indices from 0 on, `at random` draws them from the whole order
call       `docs[k]` reads one document per call, and `list` 256 of them; `ahead` calls
           `docs.prefetch` for the next list while it reads this one
cold       the cache is empty, so shards are fetched; MB is what was downloaded
warm       the same documents again, from the cache
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.documents import add_documents, framing_of, read_documents, repeat
from benchmarks.figures import Row
from benchmarks.harness import run_child
from benchmarks.options import Options, temporary_folder
from benchmarks.start.first_batches import open_store
from cloudload import Documents, convert_to_mds
from testkit.servers import BUCKET

_URL = f"s3://{BUCKET}/items"
_LIST = 256


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("dataset-mb", 800.0, 4.0, "megabytes of text in the dataset")
    options.add_amount("items", 20_000, 300, "number of documents to read")
    options.add_amount("latency-ms", 20.0, 2.0, "delay of every request, in milliseconds")
    options.run(measure)


def measure(args: argparse.Namespace, work: Path) -> Iterator[tuple[str, list[Row]]]:
    """Measure every order and call, and yield the title and the rows of the table."""
    samples = repeat(read_documents(args), int(1e6 * args.dataset_mb))
    [tokenizer] = args.tokenizer
    rows: list[Row] = []
    with open_store(tokenizer, framing_of(tokenizer)[0], args.latency_ms) as store:
        report = convert_to_mds(samples, _URL, progress=False)
        variables = store.server.environment(store.proxies[0].endpoint)
        for order, call in itertools.product(
            ("in order", "at random"), ("docs[k]", "list", "ahead")
        ):
            with temporary_folder(work) as cache:
                store.reset(0)
                given = {"cache": str(cache), "order": order, "call": call, "items": args.items}
                found = run_child(read, variables, **given)
            rows.append(
                {
                    "order": order,
                    "call": call,
                    "documents": found["documents"],
                    "cold documents/s": found["cold"],
                    "MB": store.downloaded(0) / 1e6,
                    "warm documents/s": found["warm"],
                }
            )
    yield f"{report.documents:,} documents in {report.shards} shards", rows


def read(cache: str, order: str, call: str, items: int) -> dict[str, float]:
    """Read documents twice. Returns their number, and how many per second each time."""
    rates = []
    for _ in range(2):
        docs = Documents(_URL, local=cache, epochs=1)
        indices = list(range(len(docs)))
        if order == "at random":
            random.Random(0).shuffle(indices)
        started = time.perf_counter()
        read_documents_at(docs, indices[:items], call)
        rates.append(len(indices[:items]) / (time.perf_counter() - started))
        docs.close()
    cold, warm = rates
    return {"documents": len(indices[:items]), "cold": cold, "warm": warm}


def read_documents_at(docs: Documents, indices: Sequence[int], call: str) -> None:
    if call == "docs[k]":
        for index in indices:
            docs[index]
        return
    for start in range(0, len(indices), _LIST):
        if call == "ahead":
            docs.prefetch(indices[start : start + 2 * _LIST])
        docs.__getitems__(indices[start : start + _LIST])


if __name__ == "__main__":
    main()
