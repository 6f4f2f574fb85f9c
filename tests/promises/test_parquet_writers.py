"""Parquet files of other writers, read where they are, give the documents that pyarrow reads, with
the samples of a conversion."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyarrow.parquet import encryption

from cloudload.convert import convert_to_mds
from cloudload.data.mds import virtual_index
from cloudload.data.mds.dataset import open_corpus
from cloudload.data.mds.virtual_index import ColumnChoice
from cloudload.data.storage.locations import Location
from cloudload.errors import ConvertError, DatasetError
from cloudload.inspect import read_samples
from testkit.corpora import random_documents
from testkit.loaders import make_loader
from testkit.parquet_files import WRITERS
from testkit.shard_caches import samples_of, texts_of

FILES = sorted((Path(__file__).parents[1] / "data" / "parquet_writers").iterdir())
"""Files that `scripts.write_parquet_files` wrote, named by writer, version, and setting."""
DOCUMENTS = [*random_documents(5, 120), "é 狐 \x00", "z" * 5_000]
TEXT_ONLY = ColumnChoice("text", has_others=False)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_index, "SHARD_BYTES", 5_000)


@pytest.fixture(params=[*(path.stem for path in FILES), *WRITERS])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a file of another environment's writer, or with two of a writer of this one.

    The second of two files has no IDs.
    """
    folder, writer = tmp_path / "in", request.param
    folder.mkdir()
    for path in FILES:
        if path.stem == writer:
            shutil.copy(path, folder)
            return folder
    rows = [{"id": f"d{n}", "text": text, "n": n} for n, text in enumerate(DOCUMENTS)]
    WRITERS[writer](folder / "0.parquet", rows[::2])
    WRITERS[writer](folder / "1.parquet", [{**row, "id": None} for row in rows[1::2]])
    return folder


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows that pyarrow reads. A row without an ID gets its place."""
    files = {path: pyarrow.parquet.ParquetFile(path).read() for path in sorted(folder.iterdir())}
    return [
        {**row, "id": row["id"] or f"{path.name}:{number}"}
        for path, table in files.items()
        for number, row in enumerate(table.to_pylist(), 1)
    ]


def test_the_documents_of_every_writer_are_those_that_pyarrow_reads(
    folder: Path, tmp_path: Path
) -> None:
    corpus = open_corpus([Location(str(folder))], choices=[TEXT_ONLY])
    texts = [row["text"] for row in read_rows(folder)]
    assert len(set(texts)) == len(texts) >= 30
    assert texts_of(corpus, tmp_path / "cache") == texts


def test_the_samples_of_every_writer_are_those_of_a_conversion(
    folder: Path, tmp_path: Path
) -> None:
    convert_to_mds(str(folder), str(tmp_path / "out"), progress=False, processes=1)
    converted = open_corpus([Location(str(tmp_path / "out"))])
    corpus = open_corpus([Location(str(folder))], choices=[TEXT_ONLY])
    root = tmp_path / "cache"
    assert samples_of(corpus, root) == samples_of(converted, root)


def test_all_columns_of_every_writer_are_those_that_pyarrow_reads(folder: Path) -> None:
    found = [sample.values for sample in read_samples(str(folder), limit=1_000)]
    assert found == read_rows(folder)


class _Keys(encryption.KmsClient):  # type: ignore[misc]  # pyarrow has no type hints
    """Key management that leaves keys as they are."""

    def __init__(self, _: Any) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("has_plain_footer", [False, True])
def test_an_encrypted_file_is_an_error_that_says_so(tmp_path: Path, has_plain_footer: bool) -> None:
    config = encryption.EncryptionConfiguration(
        footer_key="one", column_keys={"two": ["text"]}, plaintext_footer=has_plain_footer
    )
    factory = encryption.CryptoFactory(_Keys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    table = pyarrow.table({"text": ["a", "b"], "n": [1, 2]})
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, encryption_properties=properties)
    with (
        pytest.raises(DatasetError, match=r"a\.parquet.* cannot be read as Parquet.*encrypted"),
        make_loader(str(path), local=tmp_path / "cache", epochs=1) as loader,
    ):
        next(iter(loader))
    with pytest.raises(ConvertError, match=r"a\.parquet cannot be read as Parquet: .*encrypted"):
        convert_to_mds(str(path), str(tmp_path / "out"), progress=False, processes=1)
