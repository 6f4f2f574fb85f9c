"""Check whether a loader reads the same samples as a state, even if the shards were rewritten.

    shards     sample counts of the shards         the order depends on them
    data       sizes, hashes and columns           includes each shard's header, which names its
                                                   compression
    samples    hashes of the samples, columns      excludes the headers; "" without hashes

Two streams or corpora have the same samples if their `data` is equal, or their `samples` are.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from cloudload.run import state_fields

DATA_FIELD, SHARDS_FIELD, CHOOSE_FIELD = "data", "shards", "choose"


def has_same_samples(saved: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a state's data and a loader's data are known to have the same samples.

    `saved` and `found` are the fields of the state and the loader. Added streams are ignored.
    """
    return all(before and before == now for before, now in _list_differing(saved, found))


def explain_data(names: set[str], saved: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Explain, in sentences for an error, how the loader's data differs from the saved data.

    `names` are the fields that differ. The data may be the same documents, written again.
    """
    if SHARDS_FIELD in names and CHOOSE_FIELD in names:
        return [_describe_other_data(saved, found)]
    if SHARDS_FIELD in names:
        return [
            "The samples are split into different shards, and the order of documents depends on "
            "the number of samples in each shard. A different compression, hash algorithm, or size "
            "limit can cause this, because a shard's header counts toward its size"
        ]
    if DATA_FIELD not in names:
        return []
    pairs = _list_differing(saved, found)
    if any(before and now and before != now for before, now in pairs):
        return ["Each shard has as many samples as before, but the samples or columns differ"]
    lacking = "index" if all(before for before, _ in pairs) else "state"
    return [
        "Each shard has as many samples as before. cloudload cannot tell whether the samples are "
        f"the same, because the {lacking} has no hashes of them. If they are the same, for example "
        "because only the compression changed, continue with on_change={'data': 'same'}, which "
        "drops no tokens"
    ]


def _describe_other_data(saved: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    before, now = (str(fields[CHOOSE_FIELD]).split(",") for fields in (saved, found))
    if str(found[SHARDS_FIELD]).count(",") > str(saved[SHARDS_FIELD]).count(","):
        now = now[: len(before)]  # ignore added streams
    difference = ""
    if all(map(str.isdecimal, before)) and (old := sum(map(int, before))) != sum(map(int, now)):
        difference = f", with {sum(map(int, now)):,} samples instead of {old:,}"
    return f"This is a different dataset{difference}. Check that its URL is correct"


def _list_differing(saved: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The (saved, found) `samples` fingerprints of each stream or corpus whose `data` differs."""

    columns = [
        str(fields.get(name, "")).split(",")
        for fields in (saved, found)
        for name in (DATA_FIELD, state_fields.SAMPLES_FIELD)
    ]
    rows = itertools.zip_longest(*columns, fillvalue="")
    return [
        (samples, samples_now)
        for data, samples, data_now, samples_now in itertools.islice(rows, len(columns[0]))
        if data != data_now
    ]
