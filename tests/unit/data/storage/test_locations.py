"""A storage error includes the store's last answer, even if a later attempt times out."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudload.data.storage import locations
from cloudload.data.storage.base import Backend, Retry
from cloudload.data.storage.fsspec import FsspecStore
from cloudload.data.storage.gcs import GCSStore
from cloudload.data.storage.local import LocalStore
from cloudload.data.storage.locations import Location
from cloudload.data.storage.redaction import contains_secrets, redact
from cloudload.data.storage.s3 import GCSByHMAC
from cloudload.data.storage.urls import join_url, name_below
from cloudload.data.storage.versions import Version, version_of_details, version_of_file
from cloudload.data.storage.versions import version_of_headers as of_headers
from cloudload.errors import FailureKind, StoreError
from testkit.patience import SOON_S, within
from testkit.privileges import call_unprivileged


class _BusyThenSilent(FsspecStore):
    """A store that reports immediately that it is busy, and answers later requests after 30 s."""

    def __init__(self) -> None:
        super().__init__(timeout_s=5)
        self.attempts = 0

    def delete(self, url: str) -> None:
        self.attempts += 1
        if self.attempts > 1:
            time.sleep(30)
        raise OSError("slow down")

    def failure_kind(self, error: BaseException) -> FailureKind:
        return FailureKind.BUSY if "slow down" in str(error) else FailureKind.TIMED_OUT


def test_the_deadline_does_not_hide_the_answer_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = _BusyThenSilent()
    monkeypatch.setitem(locations.BACKENDS, "busy", lambda _: store)
    with pytest.raises(StoreError, match=r"2 attempts.*OSError: slow down") as failure:
        Location("busy://bucket/key", Retry(timeout_s=5, deadline_s=1, pause_s=0.01)).delete()
    assert failure.value.kind is FailureKind.BUSY


# ---------------------------------------------------------------- locations


def test_a_location_keeps_its_retry_wherever_it_is_sent_or_extended() -> None:
    location = Location("s3://b/corpus", Retry(deadline_s=60))
    others = [location.join("a/b.mds"), location.at("gs://c"), pickle.loads(pickle.dumps(location))]
    assert [other.retry for other in others] == [location.retry] * 3
    assert [other.url for other in others] == ["s3://b/corpus/a/b.mds", "gs://c", "s3://b/corpus"]
    assert location.within(5).retry == Retry(deadline_s=5)
    assert location.within(500).retry == location.retry


def test_locations_are_equal_if_their_urls_are() -> None:
    assert Location("s3://b/a", Retry(deadline_s=1)) == Location("s3://b/a", split="a")
    assert len({Location("s3://b/a", Retry(deadline_s=1)), Location("s3://b/a")}) == 1
    assert Location("s3://b/a") != Location("s3://b/a/")


def test_a_location_shows_no_secret() -> None:
    location = Location("https://user:secret@host/data?signature=secret")
    assert f"{location} {location!r}" == "https://host/data Location('https://host/data')"


def test_requests_with_one_timeout_share_a_backend() -> None:
    first = Location("memory://a", Retry(deadline_s=1)).backend
    assert Location("memory://b/c", Retry(pause_s=1)).backend is first
    assert Location("memory://a", Retry(timeout_s=1)).backend is not first


def test_a_split_is_the_last_part_of_a_url() -> None:
    assert Location("s3://b/a/train", split="train").remote == "s3://b/a"
    assert Location("s3://b/a/train", split="train/").remote == "s3://b/a"
    assert Location("s3://b/a/train").remote == "s3://b/a/train"


# ---------------------------------------------------------------- requests


def test_an_object_is_read_from_its_first_byte_or_the_given_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    location = Location(str(tmp_path / "a"))
    with location.open() as whole, location.open(start=1) as rest:
        assert (whole.read(), rest.read()) == (b"abc", b"bc")
    target = io.BytesIO()
    assert (location.download(target).size, target.tell()) == (3, 3)
    location.download(target, start=2)
    assert target.getvalue() == b"abcc"


def test_an_object_is_read_unless_its_version_is_known(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    location = Location(str(tmp_path / "a"))
    data, version = location.read_version()
    assert (data, version.size) == (b"abc", 3)
    data, same = location.read_version(unless=lambda found: found.size == 3)
    assert (data, same.tag) == (b"", version.tag)
    assert location.read_version(unless=lambda found: found.size != 3)[0] == b"abc"


def test_only_a_missing_object_is_read_as_none(tmp_path: Path) -> None:
    assert Location(str(tmp_path / "a")).read_if_exists() is None
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="not a regular file"):
        Location(str(tmp_path / "pipe")).read_if_exists()


def test_a_missing_object_is_deleted_already_and_another_failure_is_an_error(
    tmp_path: Path,
) -> None:
    Location(str(tmp_path / "a")).delete()
    with pytest.raises(StoreError, match="cannot delete"):
        Location(str(tmp_path)).delete()


def test_an_object_that_another_client_removed_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, read = Location(str(tmp_path / "a")), Location.read_if_exists

    def remove_and_read(location: Location) -> bytes | None:
        location.delete()
        return read(location)

    monkeypatch.setattr(Location, "read_if_exists", remove_and_read)
    assert location.create(b"mine") == b"mine"


def test_what_is_not_wanted_is_listed_by_stores_that_list_all() -> None:
    folder = Location("memory://wanted")
    folder.join("a/b").write(b"x")
    wanted = folder.join("c").url
    found = folder.collect(lambda items: [item.url for item in items], wanted=wanted.__eq__)
    assert found == [folder.join("a/b").url]


def test_the_names_in_a_folder_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["c", "a/", "b"]
    monkeypatch.setattr(LocalStore, "peek", lambda *_: iter(names))
    assert Location("/folder").peek() == ["a/", "b", "c"]
    monkeypatch.setattr(LocalStore, "peek", lambda *_: map(str, itertools.count()))
    assert len(Location("/folder").peek()) == 1_000


def test_each_object_and_chunk_that_arrives_is_progress_and_a_write_has_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received, has_no_deadline = list[str](), list[str]()

    def attempt_once(
        verb: str,
        _url: str,
        _backend: Backend,
        _retry: Retry,
        attempt: Callable[[Callable[[], None]], Any],
        *,
        may_be_long: bool = False,
        **_watch: object,
    ) -> Any:
        has_no_deadline.extend([verb] * may_be_long)
        return attempt(lambda: received.append(verb))

    monkeypatch.setattr(locations, "retrying", attempt_once)
    folder = Location(str(tmp_path))
    folder.join("a").write(b"a")
    assert folder.join("b").create(b"b") == b"b"
    assert (len(folder.list_objects()), folder.join("a").read()) == (2, b"a")
    assert received == ["read", "list", "list", "read"]
    assert has_no_deadline == ["write", "write"]


@pytest.mark.parametrize(
    ("names", "kind"),
    [((), GCSStore), (("GCS_KEY",), GCSStore), (("GCS_KEY", "GCS_SECRET"), GCSByHMAC)],
)
def test_gcs_is_read_with_an_hmac_key_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], kind: type
) -> None:
    for name in ("GCS_KEY", "GCS_SECRET"):
        monkeypatch.delenv(name, raising=False)
    for name in names:
        monkeypatch.setenv(name, "key")
    assert type(locations.BACKENDS["gs"](5.0)) is kind


# ---------------------------------------------------------------- schemes


def test_a_scheme_that_nothing_serves_is_named() -> None:
    with within(SOON_S), pytest.raises(StoreError, match="nosuch://"):
        Location("nosuch://bucket/key").read()


# ---------------------------------------------------------------- local files


def names(folder: Path) -> list[str]:
    """The names of the files below a folder."""
    return [name_below(item.url, str(folder)) for item in Location(str(folder)).list_objects()]


def write(*paths: Path) -> None:
    """Write a small file at each path."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def test_a_local_write_leaves_no_other_file(local_url: str) -> None:
    Location(join_url(local_url, "a")).write(b"a")
    with pytest.raises(StoreError):
        Location(join_url(local_url, "a")).upload(Path(local_url, "missing"))
    assert os.listdir(local_url) == ["a"]
    assert Location(join_url(local_url, "a")).read() == b"a"


def test_a_pipe_and_a_device_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with (
            within(SOON_S),
            pytest.raises(StoreError, match=rf"cannot read {path} \(1 attempt.*not a regular file"),
        ):
            Location(str(path)).read()
    with pytest.raises(StoreError, match=rf"OSError: {pipe} is a pipe, a socket, or a device"):
        Location(str(tmp_path)).list_objects()


def test_a_folder_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / "a/x", tmp_path / "b/y")
    (tmp_path / "b").chmod(0)
    try:
        with pytest.raises(StoreError, match=rf"cannot list {tmp_path}/b \(Permission denied\)"):
            call_unprivileged(lambda: Location(str(tmp_path)).list_objects())
    finally:
        (tmp_path / "b").chmod(0o755)


def test_links_to_folders_and_files_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "real/x", tmp_path / "real/deep/y", tmp_path / "in/a")
    (tmp_path / "in/folder").symlink_to("../real")
    (tmp_path / "in/again").symlink_to(tmp_path / "real/deep")
    (tmp_path / "in/file").symlink_to("../real/x")
    assert names(tmp_path / "in") == ["a", "again/y", "file", "folder/deep/y", "folder/x"]
    (tmp_path / "root").symlink_to("in")
    assert len(names(tmp_path / "root")) == 5


def test_a_folder_inside_itself_is_listed_once(tmp_path: Path) -> None:
    write(tmp_path / "in/a", tmp_path / "in/deep/b")
    (tmp_path / "in/deep/up").symlink_to("..")
    (tmp_path / "in/self").symlink_to(".")
    assert names(tmp_path / "in") == ["a", "deep/b"]
    (tmp_path / "in/above").symlink_to(tmp_path)
    assert names(tmp_path / "in") == ["a", "deep/b"]


@pytest.mark.parametrize("target", ["gone", "link"], ids=["nothing", "itself"])
def test_a_link_that_leads_nowhere_is_an_error_that_names_it(tmp_path: Path, target: str) -> None:
    write(tmp_path / "a")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(StoreError, match=rf"{tmp_path}/link is a link to {target}, which does not"):
        Location(str(tmp_path)).list_objects()


def test_what_is_not_wanted_is_neither_opened_nor_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a", tmp_path / "no/b", tmp_path / "locked/c")
    (tmp_path / "locked").chmod(0)
    (tmp_path / "no-link").symlink_to("gone")
    os.mkfifo(tmp_path / "no-pipe")
    try:
        found = call_unprivileged(
            lambda: Location(str(tmp_path)).collect(
                lambda items: sorted(item.url.removeprefix(f"{tmp_path}/") for item in items),
                wanted=lambda url: url == f"{tmp_path}/a",
            )
        )
    finally:
        (tmp_path / "locked").chmod(0o755)
    assert found == ["a", "locked/", "no-link", "no-pipe", "no/"]


@pytest.mark.parametrize("name", ["~", "~root", "dbfs:", "s3:"])
def test_a_relative_folder_with_any_name_is_listed_as_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path(f"./{name}/x"))
    for folder in (".", f"./{name}"):
        (found,) = Location(folder).list_objects()
        assert Location(found.url).read() == b"x"


# ---------------------------------------------------------------- versions


TIMES = {"Last-Modified": "Tue, 24 Nov 2026 10:00:00 GMT", "Date": "Tue, 24 Nov 2026 10:00:02 GMT"}
JUST_WRITTEN = {**TIMES, "Date": "Tue, 24 Nov 2026 10:00:01 GMT"}
ETAG = {"ETag": '"5f3c"'}


@pytest.mark.parametrize(
    "headers",
    [
        {**ETAG, **TIMES},
        {**ETAG, **TIMES, "x-amz-version-id": "null"},
        {**ETAG, **JUST_WRITTEN, "x-amz-version-id": "8f2"},
        {**JUST_WRITTEN, "x-goog-generation": "17"},
    ],
)
def test_a_strong_tag_and_an_id_are_exact(headers: dict[str, str]) -> None:
    found = of_headers({**headers, "Content-Length": "12"})
    assert found.exact == found.tag != ""
    assert found.size == 12


@pytest.mark.parametrize(
    "headers",
    [
        {},
        TIMES,
        ETAG,
        {**TIMES, "ETag": 'W/"5f3c"'},
        {**TIMES, "ETag": ""},
        {**ETAG, **JUST_WRITTEN},
        {**ETAG, "Date": TIMES["Date"]},
        {**ETAG, "Last-Modified": TIMES["Last-Modified"]},
    ],
)
def test_a_weak_tag_and_an_object_just_written_are_not_exact(headers: dict[str, str]) -> None:
    found = of_headers(headers)
    assert found.exact == ""
    assert found.size is None


def test_details_that_fsspec_may_have_kept_are_not_exact() -> None:
    assert version_of_details({"ETag": "5f3c", "generation": "17", "mtime": 1.0}).exact == ""


def version_of(path: Path) -> Version:
    with path.open("rb") as file:
        return version_of_file(file.fileno())


def test_a_local_file_is_exact_once_it_has_settled(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    assert version_of(path).exact == ""
    while not (first := version_of(path)).exact:
        time.sleep(0.1)
    assert first.size == 3
    assert version_of(path).exact == first.exact
    # the write in place and the replacement keep the size and the modification time
    written_ns = path.stat().st_mtime_ns
    (tmp_path / "other").write_bytes(b"two")
    path.write_bytes(b"six")
    os.utime(path, ns=(written_ns, written_ns))
    os.utime(tmp_path / "other", ns=(written_ns, written_ns))
    while not (second := version_of(path)).exact:
        time.sleep(0.1)
    (tmp_path / "other").replace(path)
    while not (third := version_of(path)).exact:
        time.sleep(0.1)
    assert first.key == second.key == third.key
    assert len({first.exact, second.exact, third.exact}) == 3


# ---------------------------------------------------------------- secrets


SECRET_KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYSECRET"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/token=1/sig=2/key?a=b", "s3://bucket/token=1/sig=2/key?a=b"),
        (
            "abfs://container@account.dfs.core.windows.net/key",
            "abfs://container@account.dfs.core.windows.net/key",
        ),
        ("oci://bucket@namespace/key", "oci://bucket@namespace/key"),
        ("sftp://user:p@ss@host/key", "sftp://host/key"),
        ("https://token@host/key?sig=abc", "https://host/key"),
        (
            "cannot reach http://host/o?alt=media&X-Goog-Signature=abc: refused",
            "cannot reach http://host/o refused",
        ),
        ("with url: /b?a=1&X-Amz-Signature=abc&b=2", "with url: /b?a=1&X-Amz-Signature=…&b=2"),
        (
            "AccountName=x;AccountKey=abc==;EndpointSuffix=y",
            "AccountName=x;AccountKey=…;EndpointSuffix=y",
        ),
        ("Authorization: Bearer abc.def-ghi", "Authorization: …"),
        ("invalid_grant: Invalid JWT signature", "invalid_grant: Invalid JWT signature"),
    ],
)
def test_a_text_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_a_secret_of_the_environment_is_shown_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCS_SECRET", SECRET_KEY)
    assert redact(f"signed with {SECRET_KEY}") == "signed with $GCS_SECRET"
    assert redact("of wJalrXUtnFEMI%2FK7MDENG%2BbPxRfiCYSECRET") == "of $GCS_SECRET"


def test_a_secret_is_found_in_what_led_to_an_error() -> None:
    outer = StoreError("outer")
    outer.__cause__ = ValueError("plain")
    assert not contains_secrets(outer)
    outer.__cause__.__context__ = ValueError("sftp://user:password@host")
    assert contains_secrets(outer)
