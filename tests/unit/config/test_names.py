"""The error for a wrong argument name or type suggests the right one."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload import (
    CloudLoader,
    Retry,
    Stream,
    check_dataset,
    config_from_yaml,
    convert_to_mds,
    export_rows,
)
from cloudload.config.stream import name_streams
from cloudload.errors import CloudloadError
from cloudload.system.option_help import _find_names
from testkit.corpora import random_documents, write_mds
from testkit.loaders import list_settings, make_loader

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


# ---------------------------------------------------------------- streams


def names_of(*streams: str | Stream) -> list[str]:
    listed = [each if isinstance(each, Stream) else Stream(each) for each in streams]
    return [stream.label for stream in name_streams(listed)]


@pytest.mark.parametrize(
    ("location", "name"),
    [
        (Stream("s3://bucket/corpora/web"), "web"),
        (Stream("s3://bucket/corpora/web", split="train"), "web"),
        (Stream("gs://other/corpora/web/train/"), "web"),
        (Stream("s3://bucket/code/v2.1/mds"), "code"),
        (Stream("/data/books/2024-11-01/validation"), "books"),
        (Stream("file:///data/books"), "books"),
        (Stream("s3://bucket/train"), "train"),
        (Stream("s3://web-corpus"), "web-corpus"),
        (Stream("s3://bucket/web", name="mine"), "mine"),
        (Stream("https://user:secret@host/web?sig=secret"), "web"),
    ],
)
def test_a_name_is_the_folder_that_says_most(location: Stream, name: str) -> None:
    assert names_of(location) == [name]


def test_names_are_numbered_in_order_and_keep_those_that_were_given() -> None:
    assert names_of("s3://a/web", "s3://b/web", "s3://c/web/train") == ["web", "web-2", "web-3"]
    assert names_of("s3://a/web", Stream("s3://b/x", name="web")) == ["web-2", "web"]
    assert names_of("s3://a/web-2", "s3://a/web", "s3://b/web") == ["web-2", "web", "web-3"]


_FOLDERS = st.lists(st.sampled_from(["web", "code", "train", "v2", "a b", "ü"]), max_size=3)


@given(paths=st.lists(_FOLDERS, min_size=1, max_size=6, unique_by=tuple), added=_FOLDERS)
def test_names_are_unique_and_stay_when_buckets_move_and_streams_are_added(
    paths: list[list[str]], added: list[str]
) -> None:
    paths = [[f"corpus{number % 2}", *path] for number, path in enumerate(paths)]
    before = names_of(*("/".join(["s3://old", *path]) for path in paths))
    assert len(set(before)) == len(before)
    assert not any("/" in name for name in before)
    moved = ["/".join(["gs://new", *path]) for path in paths]
    assert names_of(*moved) == before
    assert names_of(*moved, "/".join(["gs://new/added", *added]))[: len(before)] == before


def test_metrics_and_schedules_have_the_short_names(tmp_path: Path) -> None:
    web, code = (
        write_mds(tmp_path / name / "train", random_documents(1, 40)) for name in ("web", "code")
    )
    by_name: list[Any] = [(0, {"web": 2, "code": 1})]
    by_url: list[Any] = [(0, {web: 2, code: 1})]
    rows = []
    for schedule in (by_name, by_url):
        loader = make_loader([web, code], schedule=schedule)
        rows.append([batch["input_ids"].tolist() for batch in loader.take(4)])
        assert list(loader.stats().streams) == ["web", "code"]
        assert "streams/web/tokens" in loader.stats().as_dict()
        assert f"from {web}" in list_settings(loader)
    assert rows[0] == rows[1]


def test_a_state_with_urls_as_names_resumes(tmp_path: Path) -> None:
    web, code = (
        write_mds(tmp_path / name / "train", random_documents(1, 40)) for name in ("web", "code")
    )
    data = [Stream(web, proportion=2), Stream(code, proportion=1)]
    loader = make_loader(data)
    list(loader.take(3))
    state = loader.state_dict()
    rest = [batch["input_ids"].tolist() for batch in loader.take(3)]
    mixture = json.loads(state["mixture"])
    state["mixture"] = (
        json.dumps(mixture).replace('"web"', f'"{web}"').replace('"code"', f'"{code}"')
    )
    assert state["mixture"] != json.dumps(mixture)
    resumed = make_loader(data)
    resumed.load_state_dict(state)
    assert [batch["input_ids"].tolist() for batch in resumed.take(3)] == rest
