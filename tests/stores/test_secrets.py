"""cloudload shows no password, key, token, or signature in errors and their causes, logs, states,
and `repr`s."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloudload.cli import main
from cloudload.config import Stream
from cloudload.convert import convert_to_mds
from cloudload.data.storage.base import Retry
from cloudload.data.storage.locations import Location
from cloudload.errors import CloudloadError, ConvertError, StoreError
from testkit.clients import new_clients
from testkit.corpora import write_mds
from testkit.fault_proxy import Fault, FaultProxy, start_fault_proxy
from testkit.loaders import make_loader
from testkit.servers import GCSServer, S3Server, service_account, start_token_endpoint
from testkit.web_server import web_server

QUICK = Retry(timeout_s=0.5, deadline_s=1.0, pause_s=0.05)
SECRET_KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYSECRET"
SESSION_TOKEN = "FwoGZXIvYXdzEJr//////////wEaDSESSION=="
PASSWORD = "correct-horse-battery"
SIGNATURE = "deadbeefcafe0123signature"
SECRETS = (SECRET_KEY, SESSION_TOKEN, PASSWORD, SIGNATURE)

FAULTS = [
    Fault(".", "status", status=403, code="SignatureDoesNotMatch"),
    Fault(".", "status", status=400, code="ExpiredToken", message=f"{SESSION_TOKEN} has expired"),
    Fault(".", "status", status=404, code="NoSuchBucket"),
    Fault(".", "status", status=301, code="PermanentRedirect"),
    Fault(".", "status", status=503),
    Fault(".", "reset"),
    Fault(".", "drop", seconds=5),
    Fault(".", "truncate", at=10),
]


@contextmanager
def silence(caplog: pytest.LogCaptureFixture, *more: str) -> Iterator[None]:
    """Suppress an error raised in this block. Fail if the error or cloudload's log contains a
    secret."""
    said = ""
    with caplog.at_level(logging.DEBUG, logger="cloudload"):
        try:
            yield
        except Exception as error:
            # include the traceback, which a worker process would send
            said = (
                traceback.format_exc() + str(vars(pickle.loads(pickle.dumps(error)))) + repr(error)
            )
    ours = [
        record.getMessage() + str(record.exc_text)
        for record in caplog.records
        if record.name.startswith("cloudload")
    ]
    for secret in (*SECRETS, *more):
        assert secret not in said + "".join(ours)
    assert not said or "StoreError" in said


ACTS: list[Callable[[str], Any]] = [
    lambda url: Location(url, QUICK).read(),
    lambda url: Location(url, QUICK).open(),
    lambda url: Location(url, QUICK).list_objects(),
    lambda url: Location(url, QUICK).write(b"data"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.action}-{fault.code}")
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_no_failure_of_an_object_store_shows_a_key(
    scheme: str,
    fault: Fault,
    s3_server: S3Server,
    gcs_server: GCSServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = {
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_SESSION_TOKEN": SESSION_TOKEN,
        "GCS_SECRET": SECRET_KEY,
    }
    server = s3_server if scheme == "s3" else gcs_server
    with (
        start_fault_proxy(server.endpoint) as proxy,
        new_clients(server.environment(proxy.endpoint) | keys),
    ):
        proxy.set_faults([fault])
        for act in ACTS:
            with silence(caplog):
                act(f"{scheme}://cloudload/key")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.action}-{fault.code}")
def test_no_failure_of_a_web_server_shows_a_password_or_a_signature(
    fault: Fault, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with web_server(tmp_path) as endpoint, start_fault_proxy(endpoint) as proxy:
        proxy.set_faults([fault])
        host = proxy.endpoint.removeprefix("http://")
        for url in (
            f"http://reader:{PASSWORD}@{host}/key",
            f"http://{host}/key?X-Amz-Signature={SIGNATURE}&a=b",
        ):
            for act in ACTS[:2]:
                with silence(caplog):
                    act(url)


def test_the_log_of_a_start_shows_neither_password_nor_signature(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_mds(tmp_path / "mds", ["a b c"] * 30)
    with web_server(tmp_path) as endpoint, silence(caplog):
        host = endpoint.removeprefix("http://")
        url = f"http://reader:{PASSWORD}@{host}/mds"
        with make_loader(url, local=tmp_path / "cache") as loader:
            next(iter(loader))
    lines = [line for line in caplog.messages if f"http://{host}/mds" in line]
    assert [line.split(" in ")[0] for line in lines] == ["index read", "first shard fetched"]


@pytest.mark.parametrize(
    "url",
    [
        f"http://reader:{PASSWORD}@127.0.0.1:9/key",
        f"http://127.0.0.1:9/key?sig={SIGNATURE}",
        f"https://127.0.0.1:9/key?X-Amz-Credential=a&X-Amz-Security-Token={SIGNATURE}",
        f"https://{PASSWORD}@127.0.0.1:9/key",
        f"sftp://reader:{PASSWORD}@127.0.0.1:9/key",
        f"ftp://reader:{PASSWORD}@127.0.0.1:9/key",
        f"nosuch://reader:{PASSWORD}@host/key",
    ],
)
def test_a_server_that_is_not_there_shows_no_secret_of_its_url(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    for act in ACTS[:2]:
        with silence(caplog):
            act(url)


def test_a_key_file_that_is_refused_is_not_shown(
    gcs_proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    with start_token_endpoint(
        400, f'{{"access_token": "{SIGNATURE}"}} Authorization: Bearer {SIGNATURE}'
    ) as token_uri:
        account = service_account("other", token_uri)
        key = tmp_path / "key.json"
        variables = {
            "API_ENDPOINT_OVERRIDE": gcs_proxy.endpoint,
            "GOOGLE_APPLICATION_CREDENTIALS": str(key),
        }
        for content in (
            json.dumps(account),
            json.dumps(account)[:-20],
            json.dumps(account | {"private_key": "cut off"}),
        ):
            key.write_text(content)
            with new_clients(variables), silence(caplog, account["private_key"][40:80]):
                Location("gs://cloudload/key").read()


def test_a_cause_without_secrets_is_kept_and_one_with_them_is_left_out(
    s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION_TOKEN)
    for message, is_kept in (("a plain refusal", True), (f"a refusal of {SESSION_TOKEN}", False)):
        s3_proxy.fail(".", "status", status=403, code="AccessDenied", message=message)
        with pytest.raises(StoreError, match="refusal") as caught:
            Location("s3://cloudload/key").read()
        assert (caught.value.__cause__ is not None) == is_kept


def test_neither_state_nor_repr_nor_trace_of_a_loader_shows_a_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_mds(str(tmp_path / "data"), [f"document {number}" for number in range(50)])
    with web_server(tmp_path) as endpoint:
        host = endpoint.removeprefix("http://")
        streams = [
            Stream(f"http://reader:{PASSWORD}@{host}/data"),
            Stream(f"http://other:{PASSWORD}@{host}", split="data", name="other"),
        ]
        caplog.set_level(logging.DEBUG, logger="cloudload")
        with make_loader(streams, local=tmp_path / "cache") as loader:
            next(iter(loader))
            shown = [json.dumps(loader.state_dict()), repr(loader), repr(streams), str(streams[0])]
    shown += [
        record.getMessage() for record in caplog.records if record.name.startswith("cloudload")
    ]
    assert not [text for text in shown if PASSWORD in text]


def test_no_output_of_the_converter_shows_a_password(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fsspec")
    place = f"memory://user:{PASSWORD}@host/{tmp_path.name}"
    out = f"{place}/out"
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": name}))
    Location(f"{place}/in/c.jsonl").write(b'{"text": "c"}')
    Location(f"{place}/bad/d.jsonl").write(b"no JSON")
    Location(f"{place}/foreign/shard.00000.mds").write(b"")

    def convert(*arguments: str | Path, status: int, says: str) -> None:
        options = ["--processes", "1"]
        assert main(["convert", *map(str, arguments), *options]) == status
        shown = "".join(capfd.readouterr())
        assert says in shown
        assert PASSWORD not in shown

    convert(tmp_path / "a.jsonl", out, status=0, says="is complete")
    assert PASSWORD not in Location(f"{out}/convert-report.json").read().decode()
    convert(tmp_path / "a.jsonl", out, status=0, says="was already complete")
    convert(tmp_path / "a.jsonl", out, "--json", status=0, says='"already_complete": true')
    convert(tmp_path / "b.jsonl", out, status=1, says="cloudload: memory://")
    Location(f"{out}/convert-report.json").delete()
    convert(tmp_path / "a.jsonl", out, status=1, says="already contains a dataset")
    convert(tmp_path / "a.jsonl", f"{place}/foreign", status=1, says="has shards, but no journal")
    convert(f"{place}/in", f"{place}/in/out", status=1, says="is inside the input")
    convert(f"{place}/in/*", f"{place}/in", status=1, says="contains input files")
    convert(f"{place}/in", f"{place}/in/c.jsonl", f"{place}/new", status=1, says="in the inputs tw")
    convert(f"{place}/bad", f"{place}/new", status=1, says="invalid JSON")
    convert(f"{place}/none", f"{place}/new", status=1, says="no files in memory://")
    convert(f"hf://user:{PASSWORD}@host/data?x=1", out, status=1, says="unknown parameters")
    with pytest.raises(ConvertError, match="the rows of row") as caught:
        convert_to_mds(_fail(f"lost {place}"), f"{place}/rows", processes=1, progress=False)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def _fail(message: str) -> Iterator[str]:
    yield "a row"
    raise OSError(message)


@pytest.mark.parametrize("damage", ["missing", '{"version": 2, "shards": []}', "not JSON"])
def test_a_loader_that_cannot_begin_shows_no_secret(damage: str, tmp_path: Path) -> None:
    if damage != "missing":
        (tmp_path / "index.json").write_text(damage)
    with web_server(tmp_path) as endpoint:
        url = f"http://reader:{PASSWORD}@{endpoint.removeprefix('http://')}"
        with pytest.raises(CloudloadError) as caught:
            make_loader(url, local=tmp_path / "cache", retry=QUICK)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
