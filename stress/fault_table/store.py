"""The section `store`: the error, and its delay, for each failure of a store.

Each read is a process (`python -m stress.fault_table.store URL`) whose environment causes the
fault. The reads that are retried until the deadline run last, in parallel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudload.data.storage.objects import read_object, write_object
from cloudload.errors import StoreError
from stress.fault_table.markdown import shorten, table
from testkit import ROOT
from testkit.fault_proxy import Fault, FaultProxy, start_fault_proxy
from testkit.servers import (
    GCSServer,
    S3Server,
    free_ports,
    service_account,
    start_gcs,
    start_s3,
    start_token_endpoint,
)

NOWHERE = "http://no-such-host.invalid:9"
FOREVER_S = 600.0


@dataclass(frozen=True)
class Case:
    """One fault in one store. Environment `variables` that are empty are unset for the read."""

    name: str
    store: str
    url: str
    variables: Mapping[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    is_transient: bool = False


def cases(s3: dict[str, str], gcs: dict[str, str], folder: Path) -> Iterator[Case]:
    """Yield every fault.

    `s3` and `gcs` are environment variables that make clients use the servers through proxies.
    """
    yield from _transient("S3", "s3", s3, ("AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL"), is_json=False)
    yield from _transient("GCS", "gs", gcs, ("API_ENDPOINT_OVERRIDE",), is_json=True)
    yield from _s3_refusals(s3)
    yield from _gcs_refusals(gcs, folder)
    os.mkfifo(folder / "pipe")
    yield Case("FIFO", "file", str(folder / "pipe"))


def _transient(
    store: str, scheme: str, variables: dict[str, str], endpoints: tuple[str, ...], *, is_json: bool
) -> Iterator[Case]:
    busy: dict[str, Any] = (
        {"status": 429, "code": "rateLimitExceeded"}
        if is_json
        else {"status": 503, "code": "SlowDown"}
    )
    faults = {
        "503 forever": Fault(
            "/503",
            "status",
            code="backendError" if is_json else "ServiceUnavailable",
            as_json=is_json,
        ),
        "SlowDown": Fault(
            "/slow", "status", message="Please reduce your request rate.", as_json=is_json, **busy
        ),
        "reset": Fault("/reset", "reset"),
        "truncation": Fault("/truncation", "truncate", at=1_000),
        "stall": Fault("/stall", "stall", at=1_000, seconds=FOREVER_S),
    }
    for name, fault in faults.items():
        yield Case(
            name, store, f"{scheme}://cloudload{fault.match}", variables, fault, is_transient=True
        )
    for name, endpoint in {
        "refused": f"http://127.0.0.1:{free_ports(1)[0]}",
        "DNS failure": NOWHERE,
    }.items():
        elsewhere = variables | dict.fromkeys(endpoints, endpoint)
        yield Case(name, store, f"{scheme}://cloudload/key", elsewhere, is_transient=True)


def _s3_refusals(variables: dict[str, str]) -> Iterator[Case]:
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": ""}
    refusals = {
        "403": Fault("/denied", "status", status=403, code="AccessDenied", message="Access Denied"),
        "expired token": Fault(
            "/expired",
            "status",
            status=400,
            code="ExpiredToken",
            message="The provided token has expired.",
        ),
        "wrong region": Fault(
            ".*elsewhere",
            "status",
            status=301,
            code="PermanentRedirect",
            message="Use the specified endpoint",
        ),
    }
    for name, fault in refusals.items():
        yield Case(name, "S3", f"s3://cloudload/{fault.match.strip('.*/')}", variables, fault)
    yield Case("404", "S3", "s3://cloudload/nothing", variables)
    yield Case("missing bucket", "S3", "s3://no-such-bucket/key", variables)
    yield Case(
        "bad secret",
        "S3",
        "s3://cloudload/key",
        variables | {"AWS_SECRET_ACCESS_KEY": "not-the-secret"},
    )
    yield Case("no credentials", "S3", "s3://cloudload/key", variables | nobody)


def _gcs_refusals(variables: dict[str, str], folder: Path) -> Iterator[Case]:
    denied = "reader does not have storage.objects.get access to the Google Cloud Storage object."
    anonymous = "Anonymous caller does not have storage.objects.get access."
    bucket = "The specified bucket does not exist."  # the test server's own message is only 404
    refusals = {
        "403": Fault(
            "/denied", "status", status=403, code="forbidden", message=denied, as_json=True
        ),
        "missing bucket": Fault(
            "/gone", "status", status=404, code="notFound", message=bucket, as_json=True
        ),
    }
    for name, fault in refusals.items():
        yield Case(name, "GCS", f"gs://cloudload{fault.match}", variables, fault)
    yield Case("404", "GCS", "gs://cloudload/nothing", variables)
    for name in ("bad-secret", "expired-token"):
        refused = variables | {"GOOGLE_APPLICATION_CREDENTIALS": str(folder / f"{name}.json")}
        yield Case(name.replace("-", " "), "GCS", "gs://cloudload/key", refused)
    nobody = {
        "GOOGLE_APPLICATION_CREDENTIALS": "",
        "GOOGLE_CLOUD_PROJECT": "",
        "CLOUDSDK_CONFIG": str(folder),
    }
    fault = Fault(
        "/private", "status", status=401, code="required", message=anonymous, as_json=True
    )
    yield Case("no credentials", "GCS", "gs://cloudload/private", variables | nobody, fault)


def measure(names: Sequence[str]) -> str:
    """Measure the named faults, or all if there are no names, and return the table."""
    with ExitStack() as running:
        folder = Path(
            running.enter_context(tempfile.TemporaryDirectory(prefix="cloudload-faults-"))
        )
        s3, gcs = running.enter_context(start_s3()), running.enter_context(start_gcs())
        proxies = {
            server: running.enter_context(start_fault_proxy(server.endpoint))
            for server in (s3, gcs)
        }
        for name, reason in {
            "bad-secret": "Invalid JWT Signature.",
            "expired-token": "Token has been expired or revoked.",
        }.items():
            token_uri = running.enter_context(start_token_endpoint(400, reason))
            (folder / f"{name}.json").write_text(
                json.dumps(service_account("cloudload-test", token_uri))
            )
        found = list(
            cases(s3.environment(proxies[s3].endpoint), _signed_in(gcs, proxies[gcs]), folder)
        )
        found = [case for case in found if not names or case.name in names]
        _store_objects(s3, gcs, [case for case in found if case.fault])
        for server, store in ((s3, "S3"), (gcs, "GCS")):
            proxies[server].set_faults(
                [case.fault for case in found if case.fault and case.store == store]
            )
        rows = [_read(case) for case in found if not case.is_transient]
        with ThreadPoolExecutor(len(found) or 1) as threads:
            rows = [*threads.map(_read, [case for case in found if case.is_transient]), *rows]
    return table("Store", ("fault", "store", "seconds:", "message"), rows)


def _signed_in(server: GCSServer, proxy: FaultProxy) -> dict[str, str]:
    """Return the server's variables, without the one that keeps clients from signing in."""
    variables = server.environment()
    variables["STORAGE_EMULATOR_HOST"] = ""
    return variables | {"API_ENDPOINT_OVERRIDE": proxy.endpoint}


def _store_objects(s3: S3Server, gcs: GCSServer, found: list[Case]) -> None:
    os.environ.update(s3.environment() | gcs.environment())
    for case in found:
        write_object(case.url, os.urandom(100_000))


def _read(case: Case) -> tuple[str, ...]:
    """Read a case's URL in a new process, and return the row of the table."""
    variables = {
        name: value for name, value in (os.environ | dict(case.variables)).items() if value
    }
    command = [sys.executable, "-m", "stress.fault_table.store", case.url]
    printed = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    ).stdout
    seconds, message = json.loads(printed)
    return (case.name, case.store, f"{seconds:.1f}", shorten(message))


def print_failure(url: str) -> None:
    """Read a URL, and print the seconds and the error, or the number of bytes, as JSON."""
    start = time.monotonic()
    try:
        message = f"read {len(read_object(url))} bytes"
    except StoreError as error:
        message = f"{type(error).__name__}: {error}"
    print(json.dumps([time.monotonic() - start, message]))


if __name__ == "__main__":
    print_failure(sys.argv[1])
