"""Fixtures for all tests: object stores on loopback, small datasets, and a small tokenizer.

store_url         a fresh, empty location in a local folder, in S3, and in GCS: the test runs once
                  for each. `local_url`, `s3_url` and `gcs_url` are a location of one kind
s3_server         SeaweedFS; `gcs_server` is fake-gcs-server. Once started, they are the stores
                  that `os.environ` points to for the rest of the session
s3_proxy          a fault proxy in front of S3; `gcs_proxy` is one for GCS. During the test, the
                  environment points to it
small_disk        a folder on a file system of 32 KB
folder            a dataset of 60 documents; `larger_folder` has 300
fresh_tokenizers  clears the process's tokenizer caches, and checks tokenizers again
tokenizer_folder  a byte-level BPE of 400 tokens, as `AutoTokenizer.from_pretrained` reads it
tokenizer_file    the byte tokenizer as a `tokenizer.json`, for commands
traced            runs over two streams whose documents have IDs
hub_server        a stand-in for the Hugging Face Hub, to which tests add datasets
module_folder     a folder for the fixtures of one module
cli               a function that runs a command, checks its exit status, and returns its output
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from cloudload.rows.tokenization import backend
from cloudload.system.file_locks import locked
from testkit.clients import environment, models_read_once, new_clients
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.disks import mounted
from testkit.examples import EXAMPLES
from testkit.fake_hub import FakeHub, fake_hub
from testkit.fault_proxy import FaultProxy, start_fault_proxy
from testkit.servers import BUCKET, GCSServer, S3Server, start_gcs, start_s3
from testkit.shared_servers import shared
from testkit.tokenizer_files import forget
from testkit.warm_start import WarmServer, servers_from, start_warm_server

if TYPE_CHECKING:
    from testkit.traced_runs import TracedRuns

# hypothesis has no deadline for an example, because no test asserts a time
settings.register_profile("cloudload", deadline=None, max_examples=4 * EXAMPLES)
settings.load_profile("cloudload")

# for tiny batches, waking a thread pool takes longer than encoding the text
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# huggingface_hub reads this on import. Without it, requests for a missing name would be retried
os.environ["HF_HUB_OFFLINE"] = "1"

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""The name of this pytest-xdist worker, such as `gw0`; empty if the test run has one process."""

_numbers = itertools.count()
_check_ids = backend.check_ids


def pytest_collection() -> None:
    """Import the tests without garbage collections."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the objects of all tests and libraries from garbage collections, each of which would
    take 0.3 s."""
    gc.freeze()
    gc.enable()


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
def _checked_tokenizers(run_folder: Path) -> Iterator[None]:
    """Let the processes of this test run check each tokenizer once, which takes a second or two."""

    def check_once(text: str) -> str | None:
        path = run_folder / f"{backend._hash(text)}.checked"
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                path.write_text(_check_ids(text) or "")
            return path.read_text() or None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "check_ids", check_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _warm_programs(run_folder: Path) -> Iterator[None]:
    """Let all processes of this test run fork their warm programs from one server."""
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
    """The path of a folder that does not exist yet."""
    return str(tmp_path / "store")


@pytest.fixture
def s3_url(request: pytest.FixtureRequest) -> str:
    """A URL in the S3 server's bucket below which there are no objects."""
    request.getfixturevalue("s3_server")
    return f"s3://{BUCKET}/{_fresh_name(request)}"


@pytest.fixture
def gcs_url(request: pytest.FixtureRequest) -> str:
    """A URL in the GCS server's bucket below which there are no objects."""
    request.getfixturevalue("gcs_server")
    return f"gs://{BUCKET}/{_fresh_name(request)}"


@pytest.fixture(params=["local", "s3", "gcs"])
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty location. The test runs once each for a local folder, S3, and GCS."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A fault proxy in front of the S3 server, used by this test's clients and subprocesses."""
    with (
        start_fault_proxy(s3_server.endpoint) as proxy,
        new_clients(s3_server.environment(proxy.endpoint)),
    ):
        yield proxy


@pytest.fixture
def gcs_proxy(gcs_server: GCSServer) -> Iterator[FaultProxy]:
    """A fault proxy in front of the GCS server, used by this test's clients and subprocesses."""
    with (
        start_fault_proxy(gcs_server.endpoint) as proxy,
        new_clients(gcs_server.environment(proxy.endpoint)),
    ):
        yield proxy


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a 32 KB file system, for tests that fill a disk. Only root can mount it."""
    try:
        with mounted(tmp_path / "small", "size=32k") as folder:
            yield folder
    except subprocess.CalledProcessError:
        pytest.skip("needs root to mount a small file system")


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a 400-token BPE tokenizer, with `tokenizer.json` and `tokenizer_config.json`.

    ID 0 is `<|endoftext|>`, and ID 1 is `<|pad|>`.
    """
    from testkit.trained_tokenizers import save_tokenizer, small_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(small_tokenizer(), folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the byte tokenizer's `tokenizer.json`."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_tokenizer().save(str(path))
    return str(path)


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the fixtures of one module."""
    return tmp_path_factory.mktemp("module")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """A function that runs a command, checks its exit status, and returns what it printed.

    The result has the texts `out` and `err`.
    """

    def run(*arguments: object, status: int = 0) -> Any:
        from cloudload.cli import main

        capsys.readouterr()
        assert main(list(map(str, arguments))) == status
        return capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dataset of 60 documents in shards of 2 KB. All tests share it, so none may change it."""
    path = write_mds(tmp_path_factory.mktemp("mds"), random_documents(7, 60), shard_bytes=2_000)
    files = sorted(os.listdir(path))
    yield path
    assert sorted(os.listdir(path)) == files


@pytest.fixture(scope="session")
def larger_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 300 documents in shards of 4 KB. All tests share it, so none may change it."""
    return write_mds(tmp_path_factory.mktemp("mds"), random_documents(5, 300), shard_bytes=4_000)


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> TracedRuns:
    """Runs over two streams whose documents have IDs."""
    from testkit.traced_runs import TracedRuns

    return TracedRuns(tmp_path_factory.mktemp("traced"), tokenizer_folder)


@pytest.fixture
def hub_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the files of `some/model` in a temporary Hub cache."""
    import huggingface_hub.constants
    from transformers.utils import hub as transformers_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    # transformers 4 has its own copy of this setting
    monkeypatch.setattr(transformers_hub, "TRANSFORMERS_CACHE", str(tmp_path), raising=False)
    repository = tmp_path / "models--some--model"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    return snapshot


@pytest.fixture
def fresh_tokenizers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clear the process's tokenizer caches before and after the test, which checks tokenizers."""
    monkeypatch.setattr(backend, "check_ids", _check_ids)
    forget()
    yield
    forget()


def _fresh_name(request: pytest.FixtureRequest) -> str:
    return f"{request.node.originalname or request.node.name}-{WORKER}{next(_numbers)}"


@pytest.fixture(scope="session")
def hub_server() -> Iterator[FakeHub]:
    """A Hub. There is one for all tests, because the Hub's client keeps its URL."""
    pytest.importorskip("fsspec")
    with fake_hub("owner/name", {"0" * 40: {}}) as hub:
        yield hub
