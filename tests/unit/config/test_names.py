"""The error for a wrong argument name or type suggests the right one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from cloudload import (
    CloudLoader,
    Retry,
    Stream,
    check_dataset,
    config_from_yaml,
    convert_to_mds,
    export_rows,
)
from cloudload.errors import CloudloadError
from cloudload.system.option_help import _find_names
from testkit.loaders import make_loader

CALLEES: dict[str, Any] = {
    "CloudLoader": CloudLoader,
    "Stream": Stream,
    "Retry": Retry,
    "convert_to_mds": convert_to_mds,
    "check_dataset": check_dataset,
    "config_from_yaml": config_from_yaml,
    "export_rows": export_rows,
}


@pytest.mark.parametrize(
    ("callee", "name", "advice"),
    [
        ("CloudLoader", "shuffle_seed", "Use seed"),
        ("CloudLoader", "sequence_length", "Use seq_len"),
        ("CloudLoader", "max_seq_len", "Use seq_len"),
        ("CloudLoader", "nworkers", "Use num_workers"),
        ("CloudLoader", "world_size", "Use dp_world_size"),
        ("CloudLoader", "per_device_train_batch_size", "Use batch_size"),
        ("CloudLoader", "shufle_seed", "Did you mean seed?"),
        ("CloudLoader", "seqlen", "Did you mean seq_len?"),
        ("CloudLoader", "tokens_column", "Use tokens_key"),
        ("CloudLoader", "token_encoding_type", "Use tokens_dtype"),
        ("CloudLoader", "drop_last", "Use tail='drop' or tail='pad'"),
        ("CloudLoader", "split", r"Pass Stream\(url, split=…\) as data"),
        ("CloudLoader", "frobnicate", r"See help\(CloudLoader\)"),
        ("Stream", "weight", "Use proportion"),
        ("Stream", "local", "Pass it to CloudLoader"),
        ("Retry", "timeout", "Use timeout_s"),
        ("convert_to_mds", "num_proc", "Use processes"),
        ("convert_to_mds", "size_limit", "Use shard_bytes"),
        ("convert_to_mds", "seq_len", "Shards contain raw text"),
        ("check_dataset", "remote", "Use dataset"),
        ("check_dataset", "num_samples", "Use sample"),
        ("check_dataset", "verbose", "Use progress=True or progress=False"),
        ("config_from_yaml", "yaml_path", "Use source"),
        ("config_from_yaml", "loder", "Did you mean loader?"),
        ("export_rows", "num_steps", "Use num_batches"),
        ("export_rows", "tokens_dtype", "Use dtype"),
        ("export_rows", "seq_len", "Pass it to CloudLoader"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_one_that_was_meant(
    callee: str, name: str, advice: str
) -> None:
    with pytest.raises(TypeError, match=f"^{callee} has no argument '{name}'. {advice}"):
        CALLEES[callee](**{name: 1})


def test_every_unknown_argument_is_named_at_once() -> None:
    with pytest.raises(TypeError, match=r"(?s)'shuffle_seed'. Use seed\n.*'rank'. Use dp_rank"):
        CALLEES["CloudLoader"]("folder", shuffle_seed=1, rank=0)


def test_every_name_that_is_suggested_exists() -> None:
    ours = {name for names in _find_names().values() for name in names}
    existing = {name for each in CALLEES.values() for name in inspect.signature(each).parameters}
    assert ours <= existing


@pytest.mark.parametrize("callee", CALLEES.values())
def test_a_known_argument_is_never_taken_for_an_unknown_one(callee: Any) -> None:
    for name in inspect.signature(callee).parameters:
        with pytest.raises((TypeError, ValueError)) as raised:
            callee(**{name: object(), "frobnicate": 1})
        assert "frobnicate" in str(raised.value)
        assert f"no argument {name!r}" not in str(raised.value)


def test_signatures_and_types_stay_as_written() -> None:
    assert {"seq_len", "device_mesh"} <= inspect.signature(CloudLoader).parameters.keys()
    assert "split" in inspect.signature(Stream).parameters
    # mypy reports an unused `type: ignore`, so these two also test that mypy rejects the calls
    with pytest.raises(TypeError, match="Use seed"):
        CloudLoader("x", tokenizer="x", seq_len=1, batch_size=1, shuffle_seed=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Use proportion"):
        Stream("x", weight=1)  # type: ignore[call-arg]


WRONG: list[Any] = [object(), 1.5, [3], {"a": 1}, b"x", -1, float("nan"), "wrong"]
TAKES: dict[str, list[Any]] = {
    "data": ["wrong"],
    "tokenizer": ["wrong"],
    "local": ["wrong"],
    "exchange_timeout_s": [1.5],
    "cache_limit": [1.5],
}


@pytest.mark.parametrize("name", inspect.signature(CloudLoader).parameters)
def test_a_wrong_type_or_choice_is_refused_by_the_name_of_its_argument(
    folder: str, name: str
) -> None:
    for value in [each for each in WRONG if each not in TAKES.get(name, [])]:
        arguments = {"data": folder, name: value}
        with pytest.raises((ValueError, CloudloadError), match=name):
            make_loader(**arguments).close()


def test_a_device_mesh_of_another_type_is_told_what_to_pass(folder: str) -> None:
    for mesh in ("dp", ["dp"], 8):
        with pytest.raises(ValueError, match=r"device_mesh is .*Pass a torch DeviceMesh"):
            make_loader(folder, device_mesh=mesh)
