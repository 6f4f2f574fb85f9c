"""Some stores are reached only through StreamingDataset's downloaders, and are read-only."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from cloudload.data.storage.locations import Location
from cloudload.errors import StoreError
from testkit.objects import object_exists
from testkit.patience import SOON_S, within

DATA = os.urandom(300_000)


def test_what_only_streaming_reaches_is_read_by_its_downloader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = pytest.importorskip("streaming.base.storage.download")

    class FolderDownloader(download.CloudDownloader):  # type: ignore[name-defined,misc]
        """A downloader that copies local files, so the test needs no Alibaba account."""

        @staticmethod
        def _client_identifier() -> str:
            return "alipan"

        def clean_up(self) -> None:
            pass

        def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
            shutil.copy(tmp_path / remote.removeprefix("alipan:///"), local)

    monkeypatch.setitem(download.DOWNLOADER_MAPPINGS, "alipan", FolderDownloader)
    (tmp_path / "key").write_bytes(DATA)
    assert Location("alipan:///key").read() == DATA
    assert not object_exists("alipan:///nothing")
    for act in (
        lambda: Location("alipan:///key").write(b""),
        lambda: Location("alipan:///").list_objects(),
    ):
        with pytest.raises(StoreError, match="can only read"):
            act()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("oci://bucket/key", "(?i)config"),
        ("dbfs:/folder/key", "dbfs://.*databricks"),
        ("alipan:///key", "alipan://.*alipcs"),
    ],
)
def test_streamings_downloaders_fail_at_once_without_their_packages_and_settings(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("streaming")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OCI_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(StoreError, match=says):
        Location(url).read()


@pytest.mark.parametrize(
    "url",
    [
        "azure://account/key",
        "azure-dl://account/key",
        "oci://b@n/key",
        "dbfs:/key",
        "alipan:///key",
    ],
)
def test_without_streaming_its_stores_say_what_to_install(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "streaming.base.storage.download", None)
    with (
        within(SOON_S),
        pytest.raises(StoreError, match=r"cannot read \S+ URLs .*pip install mosaicml-streaming"),
    ):
        Location(url).read()
