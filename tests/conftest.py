"""Fixtures for all tests: object stores on loopback, and a small tokenizer.

store_url         a fresh, empty location: a local folder, then S3, then GCS. `local_url`, `s3_url`
                  and `gcs_url` are one of these
s3_server         SeaweedFS; `gcs_server` is fake-gcs-server. The environment points to them for
                  the rest of the session
s3_proxy          a fault proxy in front of S3; `gcs_proxy` is one for GCS. During the test, the
                  environment points to it
small_disk        a folder on a file system of 32 KB
folder            a dataset of 60 documents; `larger_folder` has 300
fresh_tokenizers  clears the process's tokenizer caches
deferring         lets a loader leave the comparison of the backends to another process
tokenizer_folder  a byte-level BPE of 400 tokens, as `AutoTokenizer.from_pretrained` reads it
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings

from cloudload.tokenization.deferral import Deferral
from tests.support.clients import environment, models_read_once, new_clients
from tests.support.corpora import random_documents, write_mds
from tests.support.examples import EXAMPLES
from tests.support.fault_proxy import FaultProxy, start_fault_proxy
from tests.support.servers import BUCKET, GCSServer, S3Server, start_gcs, start_s3
from tests.support.shared_servers import shared
from tests.support.tokenizer_files import DEFERS, forget
from tests.support.warm_start import WarmServer, servers_from, start_warm_server

# no test asserts a time
settings.register_profile("cloudload", deadline=None, max_examples=4 * EXAMPLES)
settings.load_profile("cloudload")

# thousands of tiny batches: waking a pool of threads costs more than the tokens
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# huggingface_hub reads this on import; without it, requests for a missing name are retried
os.environ["HF_HUB_OFFLINE"] = "1"

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""The name of this process among those of the test run."""

_numbers = itertools.count()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if WORKER else base


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give this process its own default cache folder, so that tests never touch the user's."""
    with environment({"CLOUDLOAD_CACHE": str(tmp_path_factory.mktemp("cache"))}):
        yield


@pytest.fixture(scope="session", autouse=True)
def _warm_programs(run_folder: Path) -> Iterator[None]:
    """Start the warm programs of all processes of this run from one server."""
    with servers_from(lambda: shared(run_folder, WarmServer, start_warm_server)):
        yield


@pytest.fixture(scope="session")
def s3_server(run_folder: Path) -> Iterator[S3Server]:
    """A running S3 server with one bucket. `os.environ` points to it, also for subprocesses."""
    with (
        shared(run_folder, S3Server, start_s3) as server,
        environment(server.environment()),
        models_read_once(),
    ):
        yield server


@pytest.fixture(scope="session")
def gcs_server(run_folder: Path) -> Iterator[GCSServer]:
    """A running GCS server with one bucket. `os.environ` points to it, also for subprocesses."""
    with (
        shared(run_folder, GCSServer, start_gcs) as server,
        environment(server.environment()),
    ):
        yield server


@pytest.fixture
def local_url(tmp_path: Path) -> str:
    """A folder that does not exist yet."""
    return str(tmp_path / "store")


@pytest.fixture
def s3_url(request: pytest.FixtureRequest) -> str:
    """An empty place in the S3 server's bucket."""
    request.getfixturevalue("s3_server")
    return f"s3://{BUCKET}/{_fresh_name(request)}"


@pytest.fixture
def gcs_url(request: pytest.FixtureRequest) -> str:
    """An empty place in the GCS server's bucket."""
    request.getfixturevalue("gcs_server")
    return f"gs://{BUCKET}/{_fresh_name(request)}"


@pytest.fixture(params=["local", "s3", "gcs"])
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty place, in each kind of store in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A proxy in front of the S3 server, used by this test's clients and subprocesses."""
    with (
        start_fault_proxy(s3_server.endpoint) as proxy,
        new_clients(s3_server.environment(proxy.endpoint)),
    ):
        yield proxy


@pytest.fixture
def gcs_proxy(gcs_server: GCSServer) -> Iterator[FaultProxy]:
    """A proxy in front of the GCS server, used by this test's clients and subprocesses."""
    with (
        start_fault_proxy(gcs_server.endpoint) as proxy,
        new_clients(gcs_server.environment(proxy.endpoint)),
    ):
        yield proxy


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "none", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tokenizer.json` and `tokenizer_config.json`: 400 tokens; id 0 is
    `<|endoftext|>`, 1 is `<|pad|>`."""
    from scripts.train_tokenizer import END_OF_TEXT, save_tokenizer, train_tokenizer

    texts = [
        "the quick brown fox jumps over the lazy dog",
        "one two three, one two four",
        "Grüße an die Füchse",
        "狐 🦊 狐 🦊",
    ]
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(texts * 3, 400, (END_OF_TEXT, "<|pad|>")), folder)
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """60 documents in small shards. Tests share this dataset, and must not change it."""
    path = write_mds(tmp_path_factory.mktemp("mds"), random_documents(7, 60), shard_bytes=2_000)
    files = sorted(os.listdir(path))
    yield path
    assert sorted(os.listdir(path)) == files


@pytest.fixture(scope="session")
def larger_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 documents."""
    return write_mds(tmp_path_factory.mktemp("mds"), random_documents(5, 300), shard_bytes=4_000)


@pytest.fixture
def fresh_tokenizers() -> Iterator[None]:
    """Clear the process's tokenizer caches before and after the test."""
    forget()
    yield
    forget()


@pytest.fixture(scope="session", autouse=True)
def _compares_at_once() -> Iterator[None]:
    """Make each process compare the backends itself, once, because most caches here are empty."""
    with patch.object(Deferral, "is_possible", False):
        yield


@pytest.fixture
def deferring(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a loader with an empty cache leave the comparison of the backends to another process."""
    monkeypatch.setattr(Deferral, "is_possible", DEFERS)
    forget()
    yield
    forget()


def _fresh_name(request: pytest.FixtureRequest) -> str:
    return f"{request.node.originalname or request.node.name}-{WORKER}{next(_numbers)}"
