"""The backend for stores that only StreamingDataset's downloaders support."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from cloudload.data.storage import clients, urls
from cloudload.data.storage.base import Backend, ObjectStream
from cloudload.errors import FailureKind, StoreError
from cloudload.system import temp_files

STREAMING_ONLY = ("azure", "azure-dl", "alipan", "dbfs")
"""The schemes that need this backend. fsspec lacks them, supports them under other names, or cannot
open them from the URL alone."""


class StreamingStore(Backend):
    """The backend that uses StreamingDataset's downloaders.

    They download whole objects, and cannot write or list.
    """

    def open(self, url: str, start: int = 0, tag: str = "") -> ObjectStream:
        try:
            from streaming.base.storage.download import CloudDownloader
        except ImportError as error:
            raise StoreError(
                f"cannot read {urls.scheme_of(url)}:// URLs ({error}). Install Streaming: pip "
                "install "
                "mosaicml-streaming"
            ) from None
        with (
            temp_files.explained_full_disk(),
            tempfile.TemporaryDirectory(prefix="cloudload-download-") as folder,
        ):
            path = Path(folder, "object")
            try:
                CloudDownloader.direct_download(url, str(path), self._timeout_s)
            except ImportError as error:
                raise StoreError(
                    f"cannot read {urls.scheme_of(url)}:// URLs ({error}). Install the missing "
                    "package"
                ) from None
            file = io.FileIO(path)  # the open file stays readable after the folder is removed
            file.seek(start)
            return ObjectStream(file)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise io.UnsupportedOperation(
            "cloudload can only read from this store. To write or list, use a path, s3://, gs://, "
            "or a scheme that fsspec supports"
        )

    upload = create = delete = list = peek = _refuse

    def failure_kind(self, error: BaseException) -> FailureKind:
        return clients.failure_kind_of_any(error)
