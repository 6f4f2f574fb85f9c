"""The guarantees of every backend, including users' fsspec file systems and StreamingDataset's
downloaders.

    local  s3  gcs  memory  user        read, write, delete, list
    http  streaming                     read only: the tests store objects by other means

To test a new backend, add a fixture `<name>_place`, and its name to `ATOMIC` if an upload replaces
an object in one step, otherwise to `WRITABLE`. A read-only backend belongs in `PLAIN_NAMES`, or in
`PLACES` if its URLs percent-encode names.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloudload.data.storage import locations
from cloudload.data.storage.base import Retry, StoredObject
from cloudload.data.storage.fsspec import StreamingStore
from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url
from cloudload.errors import FailureKind, StoreError
from testkit.objects import object_exists
from testkit.patience import refused
from testkit.web_server import web_server

LARGE = os.urandom(9_000_001)  # larger than 8 MiB, so that boto3 uploads it in parts
SECRET = "hunter2hunter2"
NAMES = ["a b", "a+b", "50%25", "100%", "ü/狐", "x=1", "a&b", "x.jsonl.zst"]


@dataclass(frozen=True)
class Place:
    """An empty folder in a store, and the function with which tests store objects in it."""

    url: str
    put: Callable[[str, bytes], None]
    """Store the bytes as an object with the given name in the folder `url`."""


def written(url: str) -> Place:
    """A folder in which tests store objects with `Location.write`."""
    return Place(url, lambda name, data: Location(join_url(url, name)).write(data))


# ---------------------------------------------------------------- places


@pytest.fixture
def user_place(tmp_path: Path) -> Place:
    """A folder in a file system that a user has registered with fsspec."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.local import LocalFileSystem

    class Shelf(LocalFileSystem):  # type: ignore[misc]
        protocol = "shelf"

        @classmethod
        def _strip_protocol(cls, path: Any) -> str:
            return str(super()._strip_protocol(str(path).removeprefix("shelf://")))

        def unstrip_protocol(self, name: str) -> str:
            return f"shelf://{self._strip_protocol(name)}"

        def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
            self.makedirs(self._parent(rpath), exist_ok=True)
            super().put_file(lpath, rpath, **options)

    fsspec.register_implementation("shelf", Shelf, clobber=True)
    return written(f"shelf://{tmp_path}/shelf")


@pytest.fixture
def http_place(tmp_path: Path) -> Iterator[Place]:
    """A folder on a web server, which cloudload reads through fsspec."""
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    folder = tmp_path / "web"
    with web_server(folder) as url:
        yield Place(url, lambda name, data: Location(join_url(str(folder), name)).write(data))


@pytest.fixture
def streaming_place(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A folder in S3, which cloudload reads with StreamingDataset's downloader."""
    pytest.importorskip("streaming")
    backend = Location(s3_url).backend
    key = (os.getpid(), "s3", Retry().timeout_s)

    def put(name: str, data: bytes) -> None:
        with monkeypatch.context() as patch:
            patch.setitem(locations.opened, key, backend)
            Location(join_url(s3_url, name)).write(data)

    monkeypatch.setitem(locations.opened, key, StreamingStore(Retry().timeout_s))
    return Place(s3_url, put)


ATOMIC = ["local", "s3", "gcs"]  # not fsspec, which does not promise atomic overwrites
WRITABLE = [*ATOMIC, "memory", "user"]
PLAIN_NAMES = [*WRITABLE, "streaming"]  # not http, whose URLs percent-encode names
PLACES = [*PLAIN_NAMES, "http"]


def open_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param in ATOMIC:
        return written(request.getfixturevalue(f"{request.param}_url"))
    if request.param == "memory":  # fsspec's in-memory file system
        pytest.importorskip("fsspec")
        return written(f"memory://{tmp_path.name}")
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty folder in each store in turn."""
    return open_place(request, tmp_path)


@pytest.fixture(params=WRITABLE)
def writable(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty folder in each store that cloudload can write to, in turn."""
    return open_place(request, tmp_path)


# ---------------------------------------------------------------- read


@pytest.mark.parametrize("data", [b"", b"x", LARGE], ids=["empty", "one byte", "9 MB"])
def test_what_was_stored_is_read(place: Place, data: bytes) -> None:
    place.put("folder/key", data)
    url = join_url(place.url, "folder/key")
    assert Location(url).read() == data
    with Location(url).open() as stream:
        assert stream.read(5) + b"".join(stream) == data


@pytest.mark.parametrize("writable", ATOMIC, indirect=True)
def test_requests_that_end_after_their_headers_leave_no_connections(writable: Place) -> None:
    writable.put("key", LARGE)
    url = join_url(writable.url, "key")
    assert Location(url).read() == LARGE
    before = count_sockets()
    for _ in range(40):  # more than the 32 connections that an S3 client keeps open
        assert Location(url).read_version(unless=lambda _: True)[0] == b""
    assert count_sockets() <= before + 1
    assert Location(url).read() == LARGE


def count_sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


@pytest.mark.parametrize("start", [0, 1, 4_500_000, 9_000_000])
def test_an_object_is_read_from_any_byte_on(place: Place, start: int) -> None:
    place.put("key", LARGE)
    with Location(join_url(place.url, "key")).open(start=start) as stream:
        assert b"".join(stream) == LARGE[start:]


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, 9_000_001), (1, 4_500_000), (8_999_999, 9_000_001)]
)
def test_a_range_of_an_object_is_read(place: Place, start: int, stop: int) -> None:
    place.put("key", LARGE)
    assert Location(join_url(place.url, "key")).read_range(start, stop) == LARGE[start:stop]


def test_an_object_that_ends_within_a_range_is_an_error(place: Place) -> None:
    place.put("key", b"0123456789")
    with pytest.raises(StoreError, match=r"key ends before byte 11, after 8 of the 9 bytes"):
        Location(join_url(place.url, "key")).read_range(2, 11)


@pytest.mark.parametrize("writable", ["s3", "gcs"], indirect=True)
def test_only_the_range_is_requested(writable: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    writable.put("key", LARGE)
    location, sent = Location(join_url(writable.url, "key")), []
    backend = location.backend
    opening = backend.open

    def note(*args: Any) -> Any:
        stream = opening(*args)
        sent.append(stream.version.size)
        return stream

    monkeypatch.setattr(backend, "open", note)
    location.read_range(1_000, 6_000)
    assert sent == [5_000]


@pytest.mark.parametrize("writable", [*ATOMIC], indirect=True)
def test_an_object_that_changed_since_it_was_listed_is_refused_by_name(writable: Place) -> None:
    writable.put("key", b"before")
    (listed,) = Location(writable.url).list_objects()
    assert listed.tag
    with Location(listed.url).open(start=2, tag=listed.tag) as stream:
        assert stream.read() == b"fore"
    writable.put("key", b"behind")
    [new] = Location(writable.url).list_objects()
    versions = rf"its version was {listed.tag}, and is now {new.tag}"
    with pytest.raises(StoreError, match=rf"{listed.url} changed since it was listed: {versions}"):
        Location(listed.url).open(tag=listed.tag)


@pytest.mark.parametrize(("most_bytes", "expected"), [(None, 10), (10, 10), (4, 5), (0, 1)])
def test_a_download_stops_one_byte_past_the_most(
    place: Place, tmp_path: Path, most_bytes: int | None, expected: int
) -> None:
    place.put("key", b"0123456789")
    target = tmp_path / "target"
    target.write_bytes(b"what was there before, and longer")
    with target.open("r+b") as file:
        Location(join_url(place.url, "key")).download(file, most_bytes=most_bytes)
        assert file.tell() == expected
    assert target.read_bytes() == b"0123456789"[:expected]


def test_a_download_begins_at_any_byte_and_continues_the_file(place: Place, tmp_path: Path) -> None:
    place.put("key", b"0123456789")
    with (tmp_path / "target").open("w+b") as file:
        file.write(b"before ")
        Location(join_url(place.url, "key")).download(file, start=7)
    assert (tmp_path / "target").read_bytes() == b"before 789"


def test_a_full_disk_is_not_called_a_failure_of_the_store(place: Place, small_disk: Path) -> None:
    place.put("key", bytes(100_000))
    with (small_disk / "target").open("w+b", buffering=0) as file:
        with pytest.raises(OSError, match="No space left on device") as caught:
            Location(join_url(place.url, "key")).download(file)
        assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("place", PLAIN_NAMES, indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_itself(place: Place, name: str) -> None:
    place.put(name, name.encode())
    assert Location(join_url(place.url, name)).read() == name.encode()


def test_an_object_exists_once_it_is_stored(place: Place) -> None:
    place.put("there", b"")
    assert object_exists(join_url(place.url, "there"))
    assert not object_exists(join_url(place.url, "not-there"))


def test_what_is_missing_is_an_error_of_that_kind(place: Place) -> None:
    place.put("there", b"")
    url = join_url(place.url, "not-there")
    with refused(r"1 attempt.*object does not exist") as caught:
        Location(url).read()
    assert caught.value.kind is FailureKind.MISSING_OBJECT
    assert caught.value.is_missing
    assert url in str(caught.value)


def test_an_error_names_the_url_without_its_secrets(place: Place) -> None:
    place.put("there", b"")
    with pytest.raises(StoreError) as caught:
        Location(join_url(place.url, f"not-there?token={SECRET}")).read()
    assert join_url(place.url, "not-there") in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


# ---------------------------------------------------------------- write, delete, list


@pytest.mark.parametrize("data", [b"", LARGE], ids=["empty", "9 MB"])
def test_a_file_is_stored(writable: Place, tmp_path: Path, data: bytes) -> None:
    source = tmp_path / "source"
    source.write_bytes(data)
    url = join_url(writable.url, "deep/er/key")
    Location(url).upload(source)
    assert Location(url).read() == data


def test_an_overwrite_replaces_all_of_an_object(writable: Place) -> None:
    url = join_url(writable.url, "key")
    for data in (b"first and longer", b"second"):
        Location(url).write(data)
        assert Location(url).read() == data
    assert Location(writable.url).list_objects() == [StoredObject(url, 6)]


def test_an_object_is_created_only_once(writable: Place) -> None:
    url = join_url(writable.url, "folder/key")
    assert Location(url).create(b"first") == b"first"
    assert Location(url).create(b"second") == b"first"
    assert Location(url).read() == b"first"
    assert [item.url for item in Location(writable.url).list_objects()] == [url]


@pytest.mark.parametrize("writable", ATOMIC, indirect=True)
def test_clients_that_create_an_object_at_once_agree_on_one(writable: Place) -> None:
    url = join_url(writable.url, "key")
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda number: Location(url).create(b"%d" % number), range(8)))
    assert found == {Location(url).read()}


def test_an_overwrite_that_fails_leaves_the_object(writable: Place, tmp_path: Path) -> None:
    url = join_url(writable.url, "key")
    Location(url).write(b"data")
    with pytest.raises((StoreError, FileNotFoundError)):
        Location(url).upload(tmp_path / "no-such-file")
    assert Location(url).read() == b"data"
    assert Location(writable.url).list_objects() == [StoredObject(url, 4)]


@pytest.mark.parametrize("writable", ATOMIC, indirect=True)
def test_a_reader_sees_all_of_an_overwrite_or_nothing(writable: Place) -> None:
    url = join_url(writable.url, "key")
    versions = [letter * (1 << 20) for letter in (b"a", b"b")]
    Location(url).write(versions[0])
    with ThreadPoolExecutor(1) as thread:
        writes = [thread.submit(Location(url).write, versions[n % 2]) for n in range(10)]
        while not writes[-1].done():
            assert Location(url).read() in versions
        assert [write.result() for write in writes] == [None] * 10


def test_what_is_deleted_is_gone_and_may_be_deleted_again(writable: Place) -> None:
    for name in ("a", "b"):
        writable.put(name, b"data")
    for _ in range(2):
        Location(join_url(writable.url, "a")).delete()
        assert not object_exists(join_url(writable.url, "a"))
        assert Location(writable.url).list_objects() == [
            StoredObject(join_url(writable.url, "b"), 4)
        ]


def test_a_listing_is_sorted_and_has_sizes(writable: Place) -> None:
    for name in ("b", "a/z", "a/y/x"):
        writable.put(name, name.encode())
    assert Location(writable.url).list_objects() == [
        StoredObject(join_url(writable.url, name), len(name)) for name in ("a/y/x", "a/z", "b")
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_listed_name_is_the_name_that_was_written(writable: Place, name: str) -> None:
    writable.put(name, name.encode())
    url = join_url(writable.url, name)
    assert Location(writable.url).list_objects() == [StoredObject(url, len(name.encode()))]


@pytest.mark.parametrize("writable", ATOMIC, indirect=True)
@pytest.mark.parametrize(
    "name", ["a#b", "a?b=c", "end?", "a\tb.txt", "a\nb.txt", "a\rb.txt", "a?.txt"]
)
def test_a_name_may_look_like_the_end_of_a_url(writable: Place, name: str) -> None:
    writable.put(name, name.encode())
    url = join_url(writable.url, name)
    assert Location(url).read() == name.encode()
    assert Location(writable.url).list_objects() == [StoredObject(url, len(name))]


def test_a_listing_holds_only_what_is_below_the_folder(writable: Place) -> None:
    for name in ("a/b/1", "a/bc/1", "a/b-2", "a/bcd"):
        writable.put(name, b"")
    inside = [StoredObject(join_url(writable.url, "a/b/1"), 0)]
    assert Location(join_url(writable.url, "a/b")).list_objects() == inside
    assert Location(join_url(writable.url, "a/b/")).list_objects() == inside
    assert Location(join_url(writable.url, "a/b/1")).list_objects() == inside


def test_a_peek_names_what_is_directly_in_a_folder(writable: Place) -> None:
    for name in ("a/b/1", "a/b/c/2", "a/d", "a/e f", "ab/g", "h"):
        writable.put(name, b"")
    assert Location(writable.url).peek() == ["a/", "ab/", "h"]
    for folder in ("a", "a/"):
        assert Location(join_url(writable.url, folder)).peek() == ["b/", "d", "e f"]


@pytest.mark.parametrize("writable", ["s3", "gcs"], indirect=True)
def test_a_peek_into_a_folder_that_is_not_there_finds_nothing(writable: Place) -> None:
    writable.put("ab", b"")
    assert Location(join_url(writable.url, "a")).peek() == []


@pytest.mark.parametrize("writable", ["s3", "gcs"], indirect=True)
def test_a_listing_goes_past_the_first_page(writable: Place) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: writable.put(f"{number:04}", b""), range(1_100)))
    assert len(Location(writable.url).list_objects()) == 1_100
    assert len(Location(writable.url).peek()) == 1_000


def test_a_store_that_can_only_be_read_says_so(streaming_place: Place) -> None:
    url = join_url(streaming_place.url, "key")
    for act in (
        lambda: Location(url).write(b""),
        lambda: Location(url).delete(),
        lambda: Location(url).list_objects(),
        lambda: Location(url).peek(),
    ):
        with pytest.raises(StoreError, match=rf"cannot \w+ {url} .*can only read"):
            act()


# ---------------------------------------------------------------- kinds between processes


def test_the_kind_of_an_error_survives_pickling() -> None:
    for kind in FailureKind:
        copy = pickle.loads(pickle.dumps(StoreError("why", kind=kind)))
        assert (str(copy), copy.kind, copy.is_missing) == ("why", kind, kind.is_missing)
