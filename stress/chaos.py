"""A training job in a hostile world: it must read, from checkpoint to checkpoint, what an
undisturbed run reads, bit for bit.

    python -m stress.chaos --restarts 200 --faults 10000

    SeaweedFS ◄── fault proxy, a fifth of all requests ◄── 1 to 4 real ranks on 1 or 2 nodes, 0 to 3 workers each
                                                            SIGKILL or SIGTERM of a worker, a rank, or all, at random moments
    caches: wiped, cut, flipped, emptied, littered between the jobs; limited, or not

Each campaign is a run (a packing, a mixture, a shuffle, finite or endless) that job after job
continues from the last checkpoint, on another world each. Every rank writes down a hash of each
row. After each job nothing of it may be left: no process, nothing in /dev/shm, and, once the next
has started, no lock and no part of a file. The exit status is 1 for any row that was lost, repeated
or changed between checkpoints, any job that hung, any left-over, and any error that is not one of
cloudload's or of the broken connection between ranks. Prints a line for each job, and a summary as
JSON.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloudload.system.temp_files import TAG
from stress.chaos_rank import PATIENCE_S, Campaign, Job, describe, hash_rows, run_rank
from tests.support.fault_proxy import Fault, FaultProxy, start_fault_proxy
from tests.support.fault_rows import shared_memory, soon
from tests.support.jobs import command_of
from tests.support.servers import S3Server, start_s3

ROOT = Path(__file__).resolve().parents[1]

BUCKET = "cloudload"
MARK = "CLOUDLOAD_CHAOS"
NUM_LANES = 24
END_S = PATIENCE_S + 30.0
STATUSES = (
    (503, "SlowDown"),
    (500, "InternalError"),
    (429, "TooManyRequests"),
    (504, "GatewayTimeout"),
)
CAMPAIGNS: tuple[tuple[str, dict[str, Any], tuple[float, ...] | None], ...] = (
    ("concat", {}, None),
    ("best_fit, mixed", {"packing": "best_fit", "open_rows": 4}, (0.7, 0.3)),
    ("finite, to its end", {"epochs": 1, "packing": "best_fit"}, None),
    (
        "one_per_row, seekable",
        {"packing": "one_per_row", "overflow": "rows", "shuffle_algo": "seekable"},
        None,
    ),
    ("concat, mixed, py1br", {"shuffle_algo": "py1br"}, (0.5, 0.5)),
)
ACTIONS = {
    "none": 3,
    "SIGKILL a worker": 3,
    "SIGKILL a rank": 3,
    "SIGKILL all": 2,
    "SIGTERM a rank": 1,
    "SIGKILL ranks": 1,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--restarts", type=int, default=200, help="jobs, at least")
    parser.add_argument("--faults", type=int, default=10_000, help="injected faults, at least")
    parser.add_argument("--share", type=float, default=0.2, help="of all requests that fail")
    parser.add_argument("--documents", type=int, default=6_000, help="of each campaign")
    parser.add_argument(
        "--wipe", type=float, default=0.4, help="share of the caches that are wiped before a job"
    )
    parser.add_argument(
        "--pause", type=float, default=2.0, help="seconds of a job's work before its end, at most"
    )
    parser.add_argument("--jobs", type=int, default=25, help="of each campaign, at most")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ.pop(MARK, None)
    with (
        tempfile.TemporaryDirectory(
            prefix="cloudload-chaos-", ignore_cleanup_errors=True
        ) as folder,
        start_s3(BUCKET) as server,
        start_fault_proxy(server.endpoint) as proxy,
    ):
        os.environ.update(server.environment())
        return Chaos(args, Path(folder), server, proxy).run()


class Chaos:
    """All campaigns, and what came of them."""

    def __init__(
        self, args: argparse.Namespace, folder: Path, server: S3Server, proxy: FaultProxy
    ) -> None:
        self._args, self._folder, self._server, self._proxy = args, folder, server, proxy
        self._random = random.Random(args.seed)
        self._context = multiprocessing.get_context("forkserver")
        self._mark = uuid.uuid4().hex
        self._jobs = self._rows = self._replayed = 0
        self._faults: collections.Counter[str] = collections.Counter()
        self._errors: collections.Counter[str] = collections.Counter()
        self._done: collections.Counter[str] = collections.Counter()
        self._slowest_end_s = 0.0
        self._failures: list[str] = []
        self._tokenizer = _make_tokenizer(folder)

    def run(self) -> int:
        """Campaign after campaign, until there were enough jobs and faults."""
        started = time.monotonic()
        # ranks are forked from a process that has imported everything, and nothing more
        os.environ[MARK] = self._mark
        # which a fork server does not take from sys.path (python/cpython#117378)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._context.set_forkserver_preload(["stress.chaos_rank", "boto3", "tokenizers"])
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: [_kill(pid) for pid in self._family()])
            warm = self._context.Process(target=int)
            warm.start()
            warm.join()
            self._servants = self._family()
            del os.environ[MARK]
            number = 0
            while (
                self._jobs < self._args.restarts or sum(self._faults.values()) < self._args.faults
            ):
                self._run_campaign(self._make_campaign(number))
                number += 1
        summary = {
            "campaigns": number,
            "restarts": self._jobs,
            "faults": sum(self._faults.values()),
            "rows": self._rows,
            "rows read again": self._replayed,
            "seconds from an end to the last process's": round(self._slowest_end_s, 1),
            "done": dict(self._done),
            "injected": dict(self._faults),
            "errors": dict(self._errors),
            "failures": self._failures,
            "minutes": round((time.monotonic() - started) / 60, 1),
        }
        print(json.dumps(summary, indent=2))
        return 1 if self._failures else 0

    def _make_campaign(self, number: int) -> Campaign:
        name, settings, proportions = CAMPAIGNS[number % len(CAMPAIGNS)]
        folder = self._folder / f"campaign-{number}"
        folder.mkdir()
        urls = tuple(
            f"s3://{BUCKET}/{number}/{stream}" for stream in range(len(proportions or "x"))
        )
        for stream, url in enumerate(urls):
            _convert(folder, url, self._args.documents // (stream + 1), self._random.random())
        settings = {"num_lanes": NUM_LANES, "seed": number, "eos": "<|endoftext|>", **settings}
        return Campaign(name, folder, urls, self._tokenizer, settings, proportions)

    def _run_campaign(self, campaign: Campaign) -> None:
        trained: dict[int, str] = {}
        seen: dict[int, str] = {}
        start = 0
        for _ in range(self._args.jobs):
            self._hurt_caches(campaign)
            job = self._make_job()
            before = _left_overs(campaign, job.nodes)
            did = self._run_job(campaign, job, before)
            stop = (
                json.loads(campaign.state_file.read_text())["rows"]
                if campaign.state_file.exists()
                else 0
            )
            found = _rows_of(campaign, job)
            for row, row_hash in found.items():
                if seen.setdefault(row, row_hash) != row_hash:
                    self._fail(
                        f"{campaign.name}, job {job.number}: row {row} is not "
                        "what it was in an earlier job"
                    )
            if missing := [row for row in range(start, stop) if row not in found]:
                self._fail(
                    f"{campaign.name}, job {job.number}: rows {missing[:5]} up to its last "
                    "checkpoint are not there"
                )
            trained.update({row: found[row] for row in range(start, stop) if row in found})
            self._replayed += sum(row >= stop for row in found)
            what = (
                f"{job.ranks} ranks, {job.nodes} nodes, {job.workers} workers: rows {start:,} "
                f"to {stop:,}, {did}"
            )
            print(f"{campaign.name}, job {job.number}: {what}", flush=True)
            start = stop
            if (campaign.folder / "ended").exists():
                break
        self._compare(campaign, trained, start)
        shutil.rmtree(campaign.folder)

    def _compare(self, campaign: Campaign, trained: dict[int, str], stop: int) -> None:
        """What was trained on against one process that nothing happens to."""
        expected: dict[int, str] = {}
        # as many rows as any job's global batch may pad the end with
        with campaign.make_loader(
            batch_size=48,
            num_workers=0,
            local=campaign.folder / "undisturbed",
            tokenizer_backend="hf",
        ) as loader:
            for batch in loader:
                expected.update(hash_rows(batch))
                if len(expected) >= stop:
                    break
        if (campaign.folder / "ended").exists():
            stop = min(stop, len(expected))
            if len(trained) < len(expected) - 48:
                self._fail(f"{campaign.name}: ended after {len(trained)} of {len(expected)} rows")
        different = [row for row in range(stop) if trained.get(row) != expected.get(row)]
        if different:
            self._fail(
                f"{campaign.name}: rows {different[:5]} and {len(different)} in all are not those "
                "of an undisturbed run"
            )
        self._rows += stop

    # ------------------------------------------------------------ one job

    def _make_job(self) -> Job:
        self._jobs += 1
        choose = self._random.choice
        ranks = choose([1, 2, 2, 3, 4])
        return Job(
            number=self._jobs,
            ranks=ranks,
            nodes=choose([1, 2]) if ranks % 2 == 0 else 1,
            workers=choose([0, 1, 1, 2, 3]),
            batch_size=choose([1, 2, 4, 6]),
            steps=choose([40, 200, 1_000]),
            save_every=choose([1, 3, 7]),
            cache_limit=choose([None, None, 3_000_000]),
            verify=choose(["once", "once", "always"]),
            start_method="fork",
            tokenizer_backend=choose(["hf", "hf", "auto"]),
            environment=self._server.environment(self._proxy.endpoint),
        )

    def _make_faults(self) -> list[Fault]:
        share, at = self._args.share, self._random.randrange(600)
        status, code = self._random.choice(STATUSES)
        of_shards = [
            Fault("GET .*shard", "truncate", share=share / 4, at=at),
            Fault("GET .*shard", "corrupt", share=share / 4, at=at),
            Fault("GET .*shard", "stall", share=share / 20, at=at, seconds=5),
        ]
        of_all = [
            Fault(".", "status", share=share / 4, status=status, code=code),
            Fault(".", "reset", share=share / 6),
            Fault(".", "delay", share=share / 8, seconds=0.3),
            Fault(".", "drop", share=share / 40, seconds=5),
        ]
        return of_shards + of_all

    def _run_job(self, campaign: Campaign, job: Job, littered: set[tuple[str, int]]) -> str:
        self._proxy.set_faults(self._make_faults())
        named, launched = shared_memory(), time.monotonic()
        ranks = [
            self._context.Process(target=run_rank, args=(campaign, job, rank))
            for rank in range(job.ranks)
        ]
        for rank in ranks:
            rank.start()
        action = self._random.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        has_stepped = self._wait_before(action, campaign, job, ranks)
        stepped = time.monotonic()
        if has_stepped and (kept := littered & _left_overs(campaign, job.nodes)):
            self._fail(f"job {job.number} has not swept up {sorted(kept)[:3]}")
        acted = time.monotonic()
        self._act(action, ranks)
        deadline = acted + END_S
        for rank in ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
        if any(rank.is_alive() for rank in ranks):
            for rank in ranks:
                _kill(rank.pid, signal.SIGUSR1)
            time.sleep(1)
            words = [
                job.log_file(campaign, number).read_text(errors="replace")
                for number, rank in enumerate(ranks)
                if rank.is_alive()
            ]
            if all("_create_gloo_process_group" in log for log in words):
                # torch's own: who connects to a rank that was killed waits for it; a launcher would
                # end them
                self._errors["waits for gloo to connect"] += 1
            else:
                self._fail(
                    f"job {job.number} hung after {action}: "
                    f"{describe(job)}\n{_last_words(campaign, job)}"
                )
        elif not soon(lambda: self._family() <= self._servants):
            left = [command_of(pid) for pid in self._family() - self._servants]
            self._fail(f"job {job.number} left processes after {action}: {left}")
        if action != "none":
            self._slowest_end_s = max(self._slowest_end_s, time.monotonic() - acted)
        for pid in self._family() - self._servants:
            _kill(pid)
        if more := shared_memory() - named:
            self._fail(f"job {job.number} left {more} in /dev/shm after {action}")
        self._done[action] += 1
        self._faults.update(request.action for request in self._proxy.requests() if request.action)
        times = (
            f"{stepped - launched:.1f} s to the first step, "
            f"{time.monotonic() - acted:.1f} s to the end"
        )
        return (
            f"{action}, {self._note_errors(campaign, job, ranks)}, {times}, "
            f"{sum(self._faults.values()):,} faults so far"
        )

    def _wait_before(self, action: str, campaign: Campaign, job: Job, ranks: list[Any]) -> bool:
        """Until the moment has come to act; whether the job has taken a step."""
        rows, deadline = job.rows_file(campaign, 0), time.monotonic() + END_S
        is_early = action != "none" and self._random.random() < 0.2
        early = time.monotonic() + self._random.uniform(0.0, 2.0)
        while all(rank.is_alive() for rank in ranks) and time.monotonic() < deadline:
            if is_early and time.monotonic() > early:
                return False
            if rows.exists() and rows.stat().st_size:
                if action != "none":
                    time.sleep(self._random.uniform(0.0, self._args.pause))
                return True
            time.sleep(0.02)
        return False

    def _act(self, action: str, ranks: list[Any]) -> None:
        heads = {rank.pid for rank in ranks if rank.is_alive()}
        others = self._family() - self._servants - heads
        victims = {
            "none": [],
            "SIGKILL a worker": self._random.sample(
                sorted(others or heads), min(1, len(others or heads))
            ),
            "SIGKILL a rank": self._random.sample(sorted(heads), min(1, len(heads))),
            "SIGTERM a rank": self._random.sample(sorted(heads), min(1, len(heads))),
            "SIGKILL ranks": sorted(heads),
            "SIGKILL all": sorted(heads | others),
        }[action]
        for victim in victims:
            _kill(victim, signal.SIGTERM if action.startswith("SIGTERM") else signal.SIGKILL)

    def _note_errors(self, campaign: Campaign, job: Job, ranks: list[Any]) -> str:
        found = []
        for number, rank in enumerate(ranks):
            if rank.exitcode == 1:
                log = job.log_file(campaign, number).read_text(errors="replace")
                [*_, error] = re.findall(
                    r"^([\w.]*(?:Error|Exception|Interrupt))\b", log, re.MULTILINE
                ) or ["nothing"]
                is_of_ranks = error == "RuntimeError" and re.search(
                    r"gloo|Connection|peer|store|socket", log
                )
                if not (
                    error.startswith("cloudload.errors.")
                    or is_of_ranks
                    or error.startswith("torch.distributed.")
                ):
                    self._fail(f"job {job.number}, rank {number}: {error}\n{log[-3000:]}")
                found.append(error.removeprefix("cloudload.errors."))
        self._errors.update(found)
        return (
            ", ".join(f"{times} {error}" for error, times in collections.Counter(found).items())
            or "no error"
        )

    def _fail(self, what: str) -> None:
        self._failures.append(what)
        print(f"FAILED: {what}", flush=True)

    # ------------------------------------------------------------ the world around it

    def _family(self) -> set[int]:
        """The live processes that descend from this script's fork server."""
        mark, found = f"{MARK}={self._mark}".encode(), set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if (
                    mark in path.read_bytes()
                    and path.with_name("stat").read_text().rpartition(")")[2].split()[0] != "Z"
                ):
                    found.add(int(path.parent.name))
        return found - {os.getpid()}

    def _hurt_caches(self, campaign: Campaign) -> None:
        for cache in campaign.folder.glob("cache-*"):
            hurt = self._random.random()
            if hurt < self._args.wipe:
                shutil.rmtree(cache)
            elif hurt < self._args.wipe + 0.4:
                own = sorted(tag.parent for tag in cache.rglob(TAG))
                files = sorted(
                    path
                    for folder in own
                    for path in folder.rglob("*")
                    if path.is_file() and path.name != TAG
                )
                for path in self._random.sample(files, len(files) // 5):
                    self._hurt(path)

    def _hurt(self, path: Path) -> None:
        data, kind = path.read_bytes(), self._random.randrange(6)
        at = self._random.randrange(max(1, len(data)))
        if kind == 0:
            path.unlink()
        elif kind == 1:
            path.write_bytes(data[:at])
        elif kind == 2:
            path.write_bytes(data[:at] + bytes([data[at] ^ 255] if data else []) + data[at + 1 :])
        elif kind == 3:
            path.write_bytes(data + b"more")
        elif kind == 4:
            path.with_name(f"{path.name}.0123456789ab.part").write_bytes(data[:at])
        else:
            path.with_name(f"{path.name}.lock").touch()


def _make_tokenizer(folder: Path) -> str:
    from scripts.train_tokenizer import save_tokenizer, standard_library_texts, train_tokenizer

    texts: Iterator[str] = (
        text[:2_000] for text, _ in zip(standard_library_texts(), range(100), strict=False)
    )
    save_tokenizer(train_tokenizer(texts, 600), folder / "tokenizer")
    return str(folder / "tokenizer" / "tokenizer.json")


def _convert(folder: Path, url: str, num_documents: int, seed: float) -> None:
    """A dataset of small shards, of words of many lengths, some documents empty."""
    from cloudload import convert_to_mds

    words, source = random.Random(seed), folder / "corpus.jsonl"
    with source.open("w") as file:
        for number in range(num_documents):
            size = 0 if words.random() < 0.01 else int(words.lognormvariate(3.5, 1.0))
            text = " ".join(
                words.choice(["the", "fox", "jumps", "über", "狐", "🦊", "lazy", "import", "self"])
                for _ in range(size)
            )
            file.write(
                json.dumps(
                    {"id": number, "text": f"{number} {text}" if size else ""}, ensure_ascii=False
                )
                + "\n"
            )
    convert_to_mds([str(source)], url, shard_bytes=1_500, processes=1, progress=False)


def _rows_of(campaign: Campaign, job: Job) -> dict[int, str]:
    """What the ranks of a job wrote down; of a killed one, the whole lines."""
    rows: dict[int, str] = {}
    for rank in range(job.ranks):
        with contextlib.suppress(FileNotFoundError):
            for line in job.rows_file(campaign, rank).read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    rows.update({int(row): row_hash for row, row_hash in json.loads(line).items()})
    return rows


def _left_overs(campaign: Campaign, nodes: int) -> set[tuple[str, int]]:
    """The locks and parts in the caches of some nodes: path and inode."""
    found = set()
    for node in range(nodes):
        for path in (campaign.folder / f"cache-{node}").rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.suffix in (".lock", ".part"):
                    found.add((str(path), path.stat().st_ino))
    return found


def _last_words(campaign: Campaign, job: Job) -> str:
    return "\n".join(
        job.log_file(campaign, rank).read_text(errors="replace")[-2000:]
        for rank in range(job.ranks)
    )


def _kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
