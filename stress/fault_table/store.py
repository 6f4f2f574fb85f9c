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

from cloudload.data.storage.locations import Location
from cloudload.errors import StoreError
from stress.fault_table.markdown import shorten, table
from testkit import ROOT
from testkit.fault_proxy import Fault, start_fault_proxy
from testkit.servers import (
    free_ports,
    service_account,
    start_gcs,
    start_s3,
    start_token_endpoint,
)

NOWHERE = "http://no-such-host.invalid:9"
FOREVER_S = 600.0
SIGN_IN_ERRORS = {
    "bad-secret": "Invalid JWT Signature.",
    "expired-token": "Token has been expired or revoked.",
}


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
    yield from _transient("S3", "s3", s3, ("AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL"))
    yield from _transient("GCS", "gs", gcs, ("API_ENDPOINT_OVERRIDE",))
    yield from _s3_refusals(s3)
    yield from _gcs_refusals(gcs, folder)
    os.mkfifo(folder / "pipe")
    yield Case("FIFO", "file", str(folder / "pipe"))


def _refuse(match: str, status: int, code: str, message: str = "a fault of the test") -> Fault:
    """A response with an error. Only codes of GCS, and those of its JSON, begin in lowercase."""
    is_gcs = code[0].islower()
    return Fault(match, "status", status=status, code=code, message=message, as_json=is_gcs)


def _transient(
    store: str, scheme: str, variables: dict[str, str], endpoints: tuple[str, ...]
) -> Iterator[Case]:
    down, busy = "ServiceUnavailable", (503, "SlowDown")
    if store == "GCS":
        down, busy = "backendError", (429, "rateLimitExceeded")
    faults = {
        "503 forever": _refuse("/503", 503, down),
        "SlowDown": _refuse("/slow", *busy, "Please reduce your request rate."),
        "reset": Fault("/reset", "reset"),
        "truncation": Fault("/truncation", "truncate", at=1_000),
        "stall": Fault("/stall", "stall", at=1_000, seconds=FOREVER_S),
    }
    for name, fault in faults.items():
        url = f"{scheme}://cloudload{fault.match}"
        yield Case(name, store, url, variables, fault, is_transient=True)
    closed = f"http://127.0.0.1:{free_ports(1)[0]}"
    for name, endpoint in {"refused": closed, "DNS failure": NOWHERE}.items():
        elsewhere = variables | dict.fromkeys(endpoints, endpoint)
        yield Case(name, store, f"{scheme}://cloudload/key", elsewhere, is_transient=True)


def _s3_refusals(variables: dict[str, str]) -> Iterator[Case]:
    key, expired = "s3://cloudload/key", "The provided token has expired."
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": ""}
    moved = _refuse(".*elsewhere", 301, "PermanentRedirect", "Use the specified endpoint")
    refusals = {
        "403": _refuse("/denied", 403, "AccessDenied", "Access Denied"),
        "expired token": _refuse("/expired", 400, "ExpiredToken", expired),
        "wrong region": moved,
    }
    for name, fault in refusals.items():
        yield Case(name, "S3", f"s3://cloudload/{fault.match.strip('.*/')}", variables, fault)
    yield Case("404", "S3", "s3://cloudload/nothing", variables)
    yield Case("missing bucket", "S3", "s3://no-such-bucket/key", variables)
    wrong = {"AWS_SECRET_ACCESS_KEY": "not-the-secret"}
    yield Case("bad secret", "S3", key, variables | wrong)
    yield Case("no credentials", "S3", key, variables | nobody)


def _gcs_refusals(variables: dict[str, str], folder: Path) -> Iterator[Case]:
    denied = "reader does not have storage.objects.get access to the Google Cloud Storage object."
    anonymous = "Anonymous caller does not have storage.objects.get access."
    bucket = "The specified bucket does not exist."  # the test server's own message is only 404
    refusals = {
        "403": _refuse("/denied", 403, "forbidden", denied),
        "missing bucket": _refuse("/gone", 404, "notFound", bucket),
    }
    for name, fault in refusals.items():
        yield Case(name, "GCS", f"gs://cloudload{fault.match}", variables, fault)
    yield Case("404", "GCS", "gs://cloudload/nothing", variables)
    for name in ("bad-secret", "expired-token"):
        refused = variables | {"GOOGLE_APPLICATION_CREDENTIALS": str(folder / f"{name}.json")}
        yield Case(name.replace("-", " "), "GCS", "gs://cloudload/key", refused)
    nobody = dict.fromkeys(("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"), "")
    nobody["CLOUDSDK_CONFIG"] = str(folder)
    fault = _refuse("/private", 401, "required", anonymous)
    yield Case("no credentials", "GCS", "gs://cloudload/private", variables | nobody, fault)


def measure(names: Sequence[str]) -> str:
    """Measure the named faults, or all if there are no names, and return the table."""
    with ExitStack() as running:
        enter = running.enter_context
        folder = Path(enter(tempfile.TemporaryDirectory(prefix="cloudload-faults-")))
        s3, gcs = enter(start_s3()), enter(start_gcs())
        s3_proxy, gcs_proxy = (enter(start_fault_proxy(each.endpoint)) for each in (s3, gcs))
        for name, reason in SIGN_IN_ERRORS.items():
            account = service_account("cloudload-test", enter(start_token_endpoint(400, reason)))
            (folder / f"{name}.json").write_text(json.dumps(account))
        # without the variable that keeps clients from signing in
        signed_in = gcs.environment() | {"STORAGE_EMULATOR_HOST": ""}
        signed_in |= {"API_ENDPOINT_OVERRIDE": gcs_proxy.endpoint}
        found = list(cases(s3.environment(s3_proxy.endpoint), signed_in, folder))
        found = [case for case in found if not names or case.name in names]
        os.environ.update(s3.environment() | gcs.environment())
        for case in found:
            if case.fault:
                Location(case.url).write(os.urandom(100_000))
        for proxy, store in ((s3_proxy, "S3"), (gcs_proxy, "GCS")):
            faults = [case.fault for case in found if case.fault and case.store == store]
            proxy.set_faults(faults)
        rows = [_read(case) for case in found if not case.is_transient]
        with ThreadPoolExecutor(len(found) or 1) as threads:
            rows = [*threads.map(_read, [case for case in found if case.is_transient]), *rows]
    return table("Store", ("fault", "store", "seconds:", "message"), rows)


def _read(case: Case) -> tuple[str, ...]:
    """Read a case's URL in a new process, and return the row of the table."""
    given = os.environ | dict(case.variables)
    variables = {name: value for name, value in given.items() if value}
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
        message = f"read {len(Location(url).read())} bytes"
    except StoreError as error:
        message = f"{type(error).__name__}: {error}"
    print(json.dumps([time.monotonic() - start, message]))


if __name__ == "__main__":
    print_failure(sys.argv[1])
