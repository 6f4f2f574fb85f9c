"""Group the shards of a dataset to count their lengths, and list the groups in an index.

    <location>/<key>/00000-<digest>.lengths     shards 0 to 15      named by shards and key
    <location>/<key>/00001-<digest>.lengths     shards 16 to 31
    <location>/<key>/index-<data>.json          all groups of one version of the data; written last

The location is the folder `lengths` of the dataset, or any other. If a dataset grows, all of its
groups except the last one stay the same. Stores write whole objects, so a file that exists is
complete, and an interrupted count continues after the existing files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from cloudload.config import choices
from cloudload.data import ShardTable, own_objects, shard_entries
from cloudload.run.recipe import Recipe

GROUP_SAMPLES, GROUP_BYTES = 1 << 20, 1 << 30
_VERSION = 1


@dataclass(frozen=True)
class LengthsKey:
    """The inputs, besides the data, that determine lengths. Each field is a plain string."""

    tokenizer: str
    """The fingerprint of the tokenizer."""
    token_ids: str
    """A hash of the IDs to which the tokenizer encodes fixed texts."""
    documents: str
    """The column that contains the documents, and the settings that turn it into text."""

    @cached_property
    def digest(self) -> str:
        """16 hex digits that name the folder with the lengths of this key."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def has_seed(self) -> bool:
        """Whether lengths depend on the run's seed and on the indices of samples."""
        return self.documents.startswith('["encode"')


@dataclass(frozen=True)
class ShardRange:
    """The consecutive shards that form a group, and the name of the group's file."""

    index: int
    """Index of the group."""
    first: int
    """Index in the dataset of the group's first shard."""
    stop: int
    """Index in the dataset after the group's last shard."""
    samples: int
    """Number of samples in the group's shards."""
    digest: str
    """16 hex digits that identify the group's shards and the key."""

    @property
    def name(self) -> str:
        """The name of the group's file."""
        return f"{self.index:05}-{self.digest}.lengths"


@dataclass(frozen=True)
class Group:
    """A group whose lengths are counted, as it is listed in the index."""

    name: str
    """The name of the group's file."""
    hash: str
    """SHA-256 of the file, in hex digits."""
    bytes: int
    """Size of the file, in bytes."""
    samples: int
    """Number of samples in the group's shards."""
    tokens: int
    """Sum of the samples' lengths, in tokens, without bos and eos."""
    empty: int
    """Number of samples without tokens."""
    filtered: int
    """Number of samples that the transform filtered out."""
    failed: int
    """Number of bad documents that were left out."""
    text_bytes: int
    """Size in bytes of the UTF-8 text that was tokenized, or of the IDs of pre-tokenized data."""


@dataclass(frozen=True)
class LengthsIndex:
    """The list of all groups of a dataset, in the order of its shards."""

    key: Mapping[str, str]
    """The fields of the `LengthsKey`."""
    data: str
    """The fingerprint of the data; see `Corpus.fingerprint`."""
    groups: tuple[Group, ...]

    def total(self, name: str) -> int:
        """Sum a field, such as `tokens`, over all groups."""
        return sum(getattr(group, name) for group in self.groups)

    def encode(self) -> bytes:
        """The bytes of the index's file."""
        values = {"version": _VERSION, **asdict(self)}
        return json.dumps(values, sort_keys=True, indent=1).encode()

    @staticmethod
    def decode(data: bytes) -> LengthsIndex:
        """Decode the file of an index. Raises a `ValueError` that says what is wrong if the file is
        damaged."""

        def read(values: Any) -> LengthsIndex:
            groups = tuple(map(_read_group, values["groups"]))
            return LengthsIndex(dict(values["key"]), str(values["data"]), groups)

        return own_objects.decode_index(data, _VERSION, "an index of token lengths", read)


def _read_group(values: Mapping[str, Any]) -> Group:
    group = Group(**values)
    numbers = {name: value for name, value in asdict(group).items() if name not in ("name", "hash")}
    for name, value in numbers.items():
        if type(value) is not int or not 0 <= value < 1 << 60:
            raise ValueError(f"a group has an invalid value for {name!r}, {value!r}")
    if "/" in group.name or not group.name.endswith(".lengths"):
        raise ValueError(f"a group has the invalid name {group.name!r}")
    return group


def index_name(data: str) -> str:
    """The file name of the index for the data with the fingerprint `data`."""
    return f"index-{data[:16]}.json"


def cut_groups(shards: ShardTable, key: LengthsKey) -> Iterator[ShardRange]:
    """Group consecutive shards. A group ends after 1,048,576 samples or 1 GiB of raw bytes.

    A copy of a dataset has the same groups.
    """
    first = first_sample = samples = num_bytes = group = 0
    sizes = zip(shards.samples.tolist(), shards.identity_bytes.tolist(), strict=True)
    for stop, (own_samples, own_bytes) in enumerate(sizes, 1):
        samples, num_bytes = samples + own_samples, num_bytes + own_bytes
        if samples >= GROUP_SAMPLES or num_bytes >= GROUP_BYTES or stop == len(shards):
            where = first_sample if key.has_seed else ""
            digest = _identify(shards[first:stop], key, where)
            yield ShardRange(group, first, stop, samples, digest)
            first_sample += samples
            first, samples, num_bytes, group = stop, 0, 0, group + 1


def _identify(
    shards: Iterable[shard_entries.ShardInfo], key: LengthsKey, first_sample: int | str
) -> str:
    """Return 16 hex digits that identify shards and a key.

    `first_sample` is the index of the first sample in its dataset, if lengths depend on it.
    """
    digest = hashlib.sha256(f"{key.digest}{first_sample}".encode())
    for shard in shards:
        columns = [(column.name, column.encoding) for column in shard.columns]
        digest.update(f"{shard.samples} {shard.identity} {columns}\n".encode())
    return digest.hexdigest()[:16]


def make_key(recipe: Recipe, stream: int) -> LengthsKey:
    """The key of the lengths of one stream of a recipe, given by its index."""
    config, source = recipe.config, recipe.config.sources[stream]
    if (column := source.tokens) is not None:
        stripped = [config.strip_tokens] if config.strip_tokens else []
        labels = [{"labels": column.labels_key}] if column.labels_key is not None else []
        return LengthsKey(
            "", "", json.dumps(["tokens", column.key, column.dtype, *stripped, *labels])
        )
    skips = [config.on_error] if config.on_error != choices.RAISE else []
    chat = recipe.chats[stream]
    if source.encode:
        # a document's tokens may depend on the seed and on the sample's index
        made = ["encode", source.encode_name, config.seed]
    elif chat is not None:
        made = ["chat", chat.name]
    else:
        made = ["text", source.text_key, source.transform_name]
    documents = json.dumps([*made, *skips])
    return LengthsKey(recipe.tokenizer.fingerprint, recipe.tokenizer.token_ids, documents)
