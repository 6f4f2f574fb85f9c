"""A shard table equals the list of its shards, whether it is in memory, mapped, or unpickled."""

from __future__ import annotations

import json
import pickle
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.cache.shard_cache import ShardCache
from cloudload.data.mds.dataset import Corpus, Dataset
from cloudload.data.mds.fingerprints import DATA, SAMPLES, fingerprint
from cloudload.data.mds.shard_entries import Column, FileInfo, ShardInfo, parse_shard
from cloudload.data.mds.shard_table import ShardTable, map_table, parse_index
from cloudload.data.storage.locations import Location
from cloudload.errors import DatasetError
from cloudload.tools.count.length_report import check_column

TEXT, BOTH = (Column.of("text", "str"),), (Column.of("n", "int"), Column.of("text", "str"))
SHARDS = [
    ShardInfo(3, TEXT, FileInfo("a.mds", 40, {}), None, None),
    ShardInfo(
        5,
        BOTH,
        FileInfo("ü/b, [1].mds", 50, {"xxh64": "aa\n,]", "sha1": "ff"}),
        FileInfo('ü/b".mds.zstd', 20, {"sha1": "\ud800"}),
        "zstd:7",
        "00aa",
    ),
    ShardInfo(0, TEXT, FileInfo("c.mds", 60, {"xxh64": "bb"}), None, None, "11bb"),
    ShardInfo(7, TEXT, FileInfo("d.mds", 70, {}), None, None),
]


def map_written(folder: Path) -> ShardTable:
    """Map the table that a test has written to `folder`."""
    mapped = map_table(folder / "table", "key")
    assert mapped is not None
    return mapped


@pytest.fixture(params=["in memory", "mapped", "sent"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ShardTable:
    made = ShardTable.of(SHARDS)
    if request.param == "in memory":
        return made
    fingerprint([made], DATA)
    made.write(tmp_path / "table", "key")
    mapped = map_written(tmp_path)
    assert mapped.fingerprints == made.fingerprints
    sent: ShardTable = pickle.loads(pickle.dumps(mapped))
    return mapped if request.param == "mapped" else sent


@pytest.mark.parametrize(
    "cut", [slice(None), slice(1, 3), slice(2, 2), slice(3, 9), slice(0, 4, 2)]
)
def test_a_table_and_every_part_of_it_is_the_list(table: ShardTable, cut: slice) -> None:
    part, wanted = table[cut], SHARDS[cut]
    for found in (part, pickle.loads(pickle.dumps(part))):
        assert list(found) == wanted
        assert [found[place] for place in range(len(found))] == wanted
        assert found == ShardTable.of(wanted)
        assert found.samples.tolist() == [shard.samples for shard in wanted]
        assert found.raw_bytes.tolist() == [shard.raw.bytes for shard in wanted]
        assert found.stored_bytes.tolist() == [shard.stored.bytes for shard in wanted]
        assert found.is_zipped.tolist() == [shard.zipped is not None for shard in wanted]
        assert found.column_sets() == list(dict.fromkeys(shard.columns for shard in wanted))
        assert sum(found.count_forms().values()) == len(wanted)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
HASHES = st.builds(
    lambda hashes, identity: hashes | identity,
    st.dictionaries(st.sampled_from(["xxh64", "sha1", "samples-xxh128", "ü"]), TEXTS),
    st.sampled_from([{}, {"identity": "7 []"}, {"identity": "12 [('ü', 'a')]"}]),
)
COLUMNS: st.SearchStrategy[list[tuple[str, str, int | None]]] = st.sampled_from(
    [[("text", "str", None)], [("text", "str", None), ("n", "int", 8)], [("ü", "bytes", None)]]
)


@st.composite
def indexes(draw: st.DrawFn) -> dict[str, Any]:
    """Indexes of up to nine shards, with various columns, hashes and compressions."""
    entries: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 9))):
        columns, samples = draw(COLUMNS), draw(st.integers(0, 9))
        name = f"{draw(st.sampled_from(['', 'a/', 'ü b/c/']))}{number}"
        size = draw(st.integers(4 * (samples + 2), (1 << 32) - 1))
        entry: dict[str, Any] = {
            "format": "mds",
            "samples": samples,
            "column_names": [column[0] for column in columns],
            "column_encodings": [column[1] for column in columns],
            "column_sizes": [column[2] for column in columns],
            "raw_data": {"basename": f"{name}.mds", "bytes": size, "hashes": draw(HASHES)},
            "compression": draw(st.sampled_from([None, "zstd:3", "gz"])),
        }
        if entry["compression"]:
            zipped = {"basename": f"{name}.zip", "bytes": draw(st.integers(0, 1 << 31))}
            entry["zip_data"] = zipped | {"hashes": draw(HASHES | st.none())}
        entries.append(entry)
    return {"version": 2, "shards": entries}


@given(indexes())
def test_a_parsed_and_a_mapped_index_have_the_shard_of_each_entry(index: dict[str, Any]) -> None:
    wanted = [parse_shard(deepcopy(entry)) for entry in index["shards"]]
    parsed = parse_index(json.dumps(index).encode(), "d")
    assert list(parsed) == wanted
    with tempfile.TemporaryDirectory() as folder:
        parsed.write(Path(folder, "table"), "key")
        mapped = map_written(Path(folder))
    assert list(mapped) == wanted
    for place, shard in enumerate(wanted):
        assert mapped[place] == shard
        assert list(mapped[place].raw.hashes) == list(shard.raw.hashes)
        assert mapped[place].stored == shard.stored


def test_a_place_out_of_range_is_an_index_error(table: ShardTable) -> None:
    assert table[-1] == SHARDS[-1]
    for place in (4, -5):
        with pytest.raises(IndexError):
            table[place]


def test_a_fingerprint_of_the_mapped_table_is_that_of_the_list(tmp_path: Path) -> None:
    for number in (2, 4):
        made = ShardTable.of(SHARDS[:number])
        wanted = [fingerprint([made], kind) for kind in (DATA, SAMPLES)]
        folder = tmp_path / str(number)
        folder.mkdir()
        made.write(folder / "table", "key")
        mapped = map_written(folder)
        assert [fingerprint([mapped], kind) for kind in (DATA, SAMPLES)] == wanted
        assert fingerprint([mapped[:1]], DATA) == fingerprint([ShardTable.of(SHARDS[:1])], DATA)
        assert fingerprint([mapped, mapped], DATA) not in wanted


def test_the_fingerprints_of_states_stay_the_same() -> None:
    dataset = Dataset(Location("s3://b/d"), tuple(SHARDS), "")
    corpus = Corpus((dataset, dataset.take(2)))
    assert corpus.fingerprint(range(2)) == "e9c11086788f4f3d82c96782244ca87c"
    assert corpus.fingerprint(range(1)) == "3c50bfb351c5102394af814115a9dcdd"
    assert corpus.fingerprint_samples(range(1)) == ""
    later = Corpus((Dataset(Location("s3://b/d"), tuple(SHARDS[1:3]), ""),))
    assert later.fingerprint_samples(range(1)) == "aee1181712c5b5c61932ad81b63df735"


def test_copies_have_the_fingerprint_of_their_originals(tmp_path: Path) -> None:
    copies = [
        ShardInfo(
            shard.samples,
            shard.columns,
            FileInfo(f"copy{number}.mds", 99, {"sha1": "00"}),
            None,
            None,
            "22cc",
            shard.identity,
        )
        for number, shard in enumerate(SHARDS)
    ]
    ShardTable.of(copies).write(tmp_path / "table", "key")
    for table in (ShardTable.of(copies), map_written(tmp_path)):
        assert fingerprint([table], DATA) == fingerprint([ShardTable.of(SHARDS)], DATA)
        assert fingerprint([table[:2]], DATA) == fingerprint([ShardTable.of(SHARDS[:2])], DATA)
        assert table.identity_bytes.tolist() == [40, 50, 60, 70]
        assert table.raw_bytes.tolist() == [99] * 4
        assert [shard.identity for shard in table] == [shard.identity for shard in SHARDS]
        assert fingerprint([table], SAMPLES)


@pytest.mark.parametrize(
    ("hashes", "samples"),
    [
        (("11", "22"), "b86b7d2fd44031a86f9b4dc8a2f8b7aa"),
        (("11", ""), ""),
        (("", ""), ""),
        (("11", None), ""),
    ],
)
def test_an_empty_hash_of_samples_is_no_hash(hashes: tuple[str | None, ...], samples: str) -> None:
    column = {"column_names": ["text"], "column_encodings": ["str"], "column_sizes": [None]}
    rest = {"format": "mds", "samples": 2, "compression": None, **column}
    shards = []
    for number, value in enumerate(hashes):
        found = {"xxh64": "aa"} | ({} if value is None else {"samples-xxh128": value})
        raw = {"basename": f"{number}.mds", "bytes": 40, "hashes": found}
        shards.append({**rest, "raw_data": raw})
    index = json.dumps({"version": 2, "shards": shards}).encode()
    corpus = Corpus((Dataset(Location("s3://b/d"), parse_index(index, "d"), ""),))
    assert corpus.fingerprint(range(1)) == "0676c7911dd9cf4298df127307614c1f"
    assert corpus.fingerprint_samples(range(1)) == samples


def test_work_over_all_shards_uses_only_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [SHARDS[0]] * 3
    local = Dataset(Location(str(tmp_path)), ShardTable.of(plain), "")
    remote = Dataset(Location("s3://b/d"), ShardTable.of([*plain, SHARDS[1]]), "")
    monkeypatch.setattr(ShardTable, "_make", None)
    check_column(remote, "text")
    cache = ShardCache(Corpus((local,)), tmp_path / "cache", verify="once")
    cache.prefetch(dict.fromkeys(range(3)))
    cache.close()


def test_a_shard_without_the_column_is_named() -> None:
    dataset = Dataset(Location("s3://b/d"), ShardTable.of([SHARDS[1], SHARDS[1], *SHARDS]), "")
    with pytest.raises(DatasetError, match=r"no column 'n' in a\.mds\. Its columns are: text"):
        check_column(dataset, "n")


def test_only_local_uncompressed_shards_are_in_place() -> None:
    places = [
        Dataset(Location(url), ShardTable.of(SHARDS[:2]), "") for url in ("/data", "s3://b/d")
    ]
    corpus = Corpus(tuple(places))
    assert [corpus.is_in_place(number) for number in range(4)] == [True, False, False, False]


def test_shards_are_found_across_datasets() -> None:
    empty, dataset = (
        Dataset(Location("s3://b/e"), (), ""),
        Dataset(Location("s3://b/d"), tuple(SHARDS), ""),
    )
    corpus = Corpus((empty, dataset, empty, dataset.take(1)))
    owners = [corpus.find_owner(number) for number in range(5)]
    assert owners == [(1, 0), (1, 1), (1, 2), (1, 3), (3, 0)]
    assert [corpus.find_shard(number)[1] for number in range(5)] == [*SHARDS, SHARDS[0]]
    assert np.array_equal(corpus.shard_sizes, [3, 5, 0, 7, 3])
