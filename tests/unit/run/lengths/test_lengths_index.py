"""Shards are grouped, named, and listed so that counted lengths belong to one data and one key."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from cloudload.data.mds.shard_entries import ShardInfo
from cloudload.data.mds.shard_table import ShardTable
from cloudload.run.lengths.lengths_index import (
    Group,
    LengthsIndex,
    LengthsKey,
    ShardRange,
    cut_groups,
    index_name,
    make_key,
)
from testkit.tiny_runs import tiny_dataset, tiny_recipe

KEY = LengthsKey("tokenizer", "ids", "documents")
GROUP = Group(
    "00000-ab.lengths",
    "ff",
    bytes=9,
    samples=4,
    tokens=7,
    empty=1,
    filtered=2,
    failed=3,
    text_bytes=5,
)
INDEX = LengthsIndex(
    asdict(KEY), "data", (GROUP, replace(GROUP, name="00001-cd.lengths", tokens=8))
)


def shards(*samples: int, raw_bytes: int = 1_000) -> ShardTable:
    table = tiny_dataset("a", samples).table
    return ShardTable.of(replace(shard, raw=replace(shard.raw, bytes=raw_bytes)) for shard in table)


def ranges(table: ShardTable, key: LengthsKey = KEY) -> list[tuple[int, int, int, int]]:
    return [
        (group.index, group.first, group.stop, group.samples) for group in cut_groups(table, key)
    ]


def test_a_group_ends_with_the_shard_that_reaches_2_to_20_samples() -> None:
    half = 1 << 19
    assert ranges(shards(half, half, half)) == [(0, 0, 2, 2 * half), (1, 2, 3, half)]
    assert ranges(shards(half, half - 1, 1, 9)) == [(0, 0, 3, 2 * half), (1, 3, 4, 9)]


def test_a_group_ends_with_the_shard_that_reaches_1_gib() -> None:
    table = shards(5, 6, 7, raw_bytes=1 << 29)
    assert ranges(table) == [(0, 0, 2, 11), (1, 2, 3, 7)]
    assert ranges(shards(5, 6, 7, raw_bytes=(1 << 29) - 1)) == [(0, 0, 3, 18)]


def test_few_shards_are_one_group_and_none_have_none() -> None:
    assert ranges(shards(5)) == [(0, 0, 1, 5)]
    assert ranges(shards()) == []


def test_appended_shards_change_only_the_last_group() -> None:
    many = 1 << 20
    before, after = (list(cut_groups(shards(*each), KEY)) for each in ((many, 5), (many, 5, 6)))
    assert before[0] == after[0]
    assert before[1].digest != after[1].digest


def test_a_group_is_named_by_its_number_shards_and_key() -> None:
    [group] = cut_groups(shards(5), KEY)
    assert group.name == f"00000-{group.digest}.lengths"
    assert len(group.digest) == 16
    assert ShardRange(123_456, 0, 1, 5, "ab").name == "123456-ab.lengths"
    [other] = cut_groups(shards(5), replace(KEY, tokenizer="other"))
    assert other.digest != group.digest


def describe(shard: ShardInfo, **changes: Any) -> str:
    [group] = cut_groups(ShardTable.of([replace(shard, **changes)]), KEY)
    return group.digest


def test_the_name_of_a_group_depends_on_samples_bytes_hashes_and_columns_only() -> None:
    [shard] = shards(5)
    plain, raw = describe(shard), shard.raw
    assert describe(shard, samples=6) != plain
    assert describe(shard, raw=replace(raw, bytes=7)) != plain
    assert describe(shard, raw=replace(raw, hashes={"xxh64": "0"})) != plain
    assert describe(shard, columns=(replace(shard.columns[0], name="body"),)) != plain
    assert describe(shard, raw=replace(raw, name="other.mds")) == plain


# ------------------------------------------------------------------------- the index


def test_an_index_is_read_as_it_was_written_and_sums_its_groups() -> None:
    assert LengthsIndex.decode(INDEX.encode()) == INDEX
    assert (INDEX.total("tokens"), INDEX.total("samples")) == (15, 8)
    assert index_name("0123456789abcdef0123") == "index-0123456789abcdef.json"


def damage(**changes: Any) -> bytes:
    """The index with changes of its first group."""
    values = json.loads(INDEX.encode())
    values["groups"][0] |= changes
    return json.dumps(values).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"7", "is not an index of token lengths"),
        (b"{}", "is not an index of token lengths"),
        (b"[" * 9_999, "is not an index of token lengths"),
        (
            INDEX.encode().replace(b'"version": 1', b'"version": 2'),
            "has format version 2, .* only 1",
        ),
        (damage(tokens=-1), "a group has an invalid value for 'tokens', -1"),
        (damage(bytes=1 << 60), "a group has an invalid value for 'bytes'"),
        (damage(empty=True), "a group has an invalid value for 'empty', True"),
        (damage(samples="4"), "a group has an invalid value for 'samples', '4'"),
        (damage(name="../x.lengths"), "a group has the invalid name '../x.lengths'"),
        (damage(name="x.json"), "a group has the invalid name 'x.json'"),
        (damage(more=1), "is not an index of token lengths"),
    ],
)
def test_a_damaged_index_says_what_is_wrong(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LengthsIndex.decode(content)


# ------------------------------------------------------------------------- the key


def test_the_key_of_text_names_tokenizer_column_and_transform() -> None:
    key = make_key(tiny_recipe([9], text_key="body"), 0)
    assert key == LengthsKey("tiny", "ids", '["text", "body", null]')
    assert len(key.digest) == 16
    skipping = make_key(tiny_recipe([9], on_error="skip"), 0)
    assert skipping.documents == '["text", "text", null, "skip"]'


def test_the_key_of_token_ids_has_only_their_column() -> None:
    key = make_key(tiny_recipe([9], tokens_key="ids", tokens_dtype="uint16"), 0)
    assert key == LengthsKey("", "", '["tokens", "ids", "uint16"]')


def test_the_key_of_stripped_token_ids_has_what_is_stripped() -> None:
    key = make_key(tiny_recipe([9], tokens_key="ids", strip_tokens=[2, 0]), 0)
    assert key == LengthsKey("", "", '["tokens", "ids", null, [0, 2]]')


def test_what_does_not_change_lengths_does_not_change_the_key() -> None:
    plain = make_key(tiny_recipe([9]), 0)
    for options in (
        {"seq_len": 9},
        {"packing": "best_fit"},
        {"min_tokens": 3},
        {"max_tokens": 3},
        {"frames": [(1, 2)]},
    ):
        assert make_key(tiny_recipe([9], **options), 0) == plain
