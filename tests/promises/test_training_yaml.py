"""A loader with options from an llm-foundry training YAML has the same rows as a loader with the
StreamingDataset that llm-foundry creates from the YAML."""

from __future__ import annotations

import logging
import re
from collections import UserDict, UserList
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import Chat, CloudLoader, Retry, Stream, config_from_yaml
from cloudload.errors import TokenizerError
from cloudload.run.training_yaml import read_yaml, resolve
from testkit.both_readers import streaming_dataset
from testkit.conversations import chat_tokenizer, conversations, write_conversations
from testkit.corpora import random_documents, write_mds
from testkit.loaders import rows_of
from testkit.state_fields import without

TRAINING = """
variables:
  data_local: {local}
  data_remote: {remote}
  tokenizer_name: {tokenizer}
  max_seq_len: 16
  global_seed: 17

max_seq_len: ${{variables.max_seq_len}}
run_name: ${{oc.env:RUN_NAME}}

model:
  name: mpt_causal_lm
  d_model: 768
  max_seq_len: ${{variables.max_seq_len}}

tokenizer:
  name: ${{variables.tokenizer_name}}
  kwargs:
    model_max_length: ${{variables.max_seq_len}}

train_loader:
  name: text
  dataset:
    streams:
      web:
        remote: ${{variables.data_remote}}/web
        local: ${{variables.data_local}}/web
        proportion: 0.7
      books:
        remote: ${{variables.data_remote}}/books
        local: ${{variables.data_local}}/books
        split: train_small
        proportion: 0.3
    split: train
    shuffle: true
    shuffle_algo: py1br
    shuffle_block_size: 1e2
    num_canonical_nodes: 2
    max_seq_len: ${{max_seq_len}}
    shuffle_seed: ${{variables.global_seed}}
    cache_limit: 10gb
    download_retry: 4
    eos_token_id:
  drop_last: true
  num_workers: 2
  prefetch_factor: 3
  pin_memory: false
  persistent_workers: true
  timeout: 0

eval_loader:
- label: books
  name: text
  dataset:
    local: ${{variables.data_remote}}/books
    remote:
    split: val
    shuffle: false
    shuffle_seed: ${{variables.global_seed}}
  drop_last: false
  num_workers: 0

optimizer:
  name: decoupled_adamw
  lr: 6.0e-4
global_train_batch_size: 256
seed: ${{variables.global_seed}}
device_eval_batch_size: 16
device_train_microbatch_size: auto
"""
"""A YAML like those in llm-foundry's `scripts/train/yamls/pretrain`."""


@pytest.fixture(scope="module")
def corpora(module_folder: Path) -> Path:
    """A folder with three datasets from two sources."""
    for seed, name in enumerate(["web/train", "books/train_small", "books/val"]):
        documents = random_documents(seed, 40 + 7 * seed, max_words=9)
        write_mds(module_folder / name, documents, shard_samples=[7, 12, len(documents) - 19])
    return module_folder


@pytest.fixture
def training(corpora: Path, tokenizer_folder: Path, tmp_path: Path) -> Path:
    """Write the training YAML for this test, and return its path."""
    local = tmp_path / "local"
    text = TRAINING.format(local=local, remote=corpora, tokenizer=tokenizer_folder)
    (tmp_path / "train.yaml").write_text(text)
    return tmp_path / "train.yaml"


def parse(training: Path) -> dict[str, Any]:
    return dict(read_yaml(training))


# ---------------------------------------------------------------- the same rows


@pytest.mark.usefixtures("alone_with_streaming")
@pytest.mark.parametrize(
    ("weights", "more"),
    [
        (({"proportion": 0.7}, {"proportion": 0.3}), {}),
        (({"proportion": 3}, {"proportion": 1}), {"epoch_size": "0.06k"}),
        (({"repeat": 1.5}, {"choose": 9}), {"shuffle_algo": "py2s"}),
        (({}, {}), {"epoch_size": 123}),
        (({}, {}), {"shuffle": False}),
    ],
    ids=str,
)
def test_rows_are_those_of_the_streaming_dataset_with_these_arguments(
    training: Path, corpora: Path, tmp_path: Path, weights: Any, more: dict[str, Any]
) -> None:
    import streaming

    content = parse(training)
    section = content["train_loader"]["dataset"]
    for stream, weight in zip(section["streams"].values(), weights, strict=True):
        del stream["proportion"]
        stream.update(weight)
    section |= more
    options = config_from_yaml(content) | {"num_workers": 0}

    ours: dict[str, Any] = {"shuffle": True, "shuffle_algo": "py1br", "shuffle_block_size": 100}
    ours |= {"num_canonical_nodes": 2, "shuffle_seed": 17, **more}
    web = streaming.Stream(local=f"{corpora}/web", **weights[0])
    books = streaming.Stream(local=f"{corpora}/books", split="train_small", **weights[1])
    dataset = streaming_dataset(streams=[web, books], split="train", **ours)
    more = {"batch_size": 4, "epochs": 2, "local": tmp_path / "cache", "num_lanes": 4}
    with_yaml = CloudLoader(**options, **more)
    names = ("tokenizer", "seq_len", "tail", "num_workers")
    with_dataset = CloudLoader(dataset, **{name: options[name] for name in names}, **more)
    assert with_yaml.recipe.fields == with_dataset.recipe.fields
    rows = rows_of(with_yaml)
    assert rows == rows_of(with_dataset)
    assert len(rows) > 30


# ---------------------------------------------------------------- what becomes what


def test_a_training_yaml_has_the_options_of_its_data_and_nothing_of_its_model(
    training: Path, corpora: Path, tokenizer_folder: Path
) -> None:
    config = config_from_yaml(training)
    assert config.pop("data") == [
        Stream(f"{corpora}/web", split="train", choose=60, name="web"),
        Stream(f"{corpora}/books", split="train_small", choose=27, name="books"),
    ]
    assert config == {
        "tokenizer": str(tokenizer_folder),
        "seq_len": 16,
        "shuffle": True,
        "shuffle_algo": "py1br",
        "shuffle_block_size": 100,
        "num_canonical_nodes": 2,
        "seed": 17,
        "cache_limit": "10gb",
        "retry": Retry(timeout_s=60.0, deadline_s=300),
        "tail": "drop",
        "num_workers": 2,
        "prefetch_batches": 6,
        "pin_memory": False,
    }


def test_another_loader_is_named_and_its_data_may_be_local_only(
    training: Path, corpora: Path, tokenizer_folder: Path
) -> None:
    assert config_from_yaml(training, "eval_loader.0") == {
        "data": [Stream(f"{corpora}/books", split="val")],
        "tokenizer": str(tokenizer_folder),
        "seq_len": 16,
        "shuffle": False,
        "shuffle_algo": "py1e",
        "seed": 17,
        "tail": "pad",
        "num_workers": 0,
    }


def test_a_part_of_a_training_yaml_will_do(training: Path) -> None:
    whole = config_from_yaml(training)
    content = resolve(parse(training)["train_loader"], parse(training), "")
    of_loader = ("tail", "num_workers", "prefetch_batches", "pin_memory")
    assert config_from_yaml(content) == without(whole, "tokenizer")
    assert config_from_yaml(content["dataset"]) == without(whole, "tokenizer", *of_loader)
    assert config_from_yaml({"compute": {}, "parameters": parse(training)}) == whole


def test_containers_of_omegaconf_will_do(training: Path) -> None:
    """OmegaConf's containers are mappings and sequences, but not dicts or lists."""
    assert config_from_yaml(wrap(parse(training))) == config_from_yaml(training)
    evaluation = config_from_yaml(training, "eval_loader.0")
    assert config_from_yaml(wrap(parse(training)), "eval_loader.0") == evaluation


def wrap(value: Any) -> Any:
    if isinstance(value, dict):
        return UserDict({key: wrap(each) for key, each in value.items()})
    return UserList(map(wrap, value)) if isinstance(value, list) else value


def test_streamings_defaults_apply_to_what_a_dataset_leaves_open(corpora: Path) -> None:
    assert config_from_yaml({"remote": f"{corpora}/web", "shuffle_seed": None}) == {
        "data": [Stream(f"{corpora}/web")],
        "shuffle": False,
        "shuffle_algo": "py1e",
        "seed": 9176,
    }


def test_a_tokenizer_with_arguments_is_loaded_with_them(training: Path, tmp_path: Path) -> None:
    content = parse(training)
    content["tokenizer"]["kwargs"] |= {"eos_token": "<|pad|>"}
    loader = CloudLoader(**config_from_yaml(content), batch_size=4, local=tmp_path)
    assert [frame[1] for frame in loader.recipe.tokenizer.frames] == [1, 1]
    content["tokenizer"]["name"] = str(tmp_path / "nothing")
    with pytest.raises(TokenizerError, match=r"cannot load the tokenizer .*nothing.*eos_token"):
        config_from_yaml(content)


def test_dates_are_text_and_exponents_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "dataset.yaml").write_text(
        "{remote: s3://b, split: 2026-11-23, predownload: 1e5, download_timeout: 9e1}"
    )
    config = config_from_yaml(tmp_path / "dataset.yaml")
    assert config["data"] == [Stream("s3://b", split="2026-11-23")]
    assert (config["predownload"], config["retry"].timeout_s) == (100_000, 90)


def test_a_stream_or_a_dataset_may_have_options_of_chat(corpora: Path, tmp_path: Path) -> None:
    chat_tokenizer().save_pretrained(tmp_path / "tokenizer")
    folder = write_conversations(tmp_path / "chats", conversations(20))
    dataset: dict[str, Any] = {"tokenizer_name": str(tmp_path / "tokenizer"), "max_seq_len": 64}
    dataset["streams"] = {
        "web": {"remote": f"{corpora}/web/train"},
        "chats": {"remote": folder, "chat": {"train": "last", "reasoning_tags": ["<t>", "</t>"]}},
    }
    config = config_from_yaml({"dataset": dataset})
    last = Chat(train="last", reasoning_tags=("<t>", "</t>"))
    assert config["data"] == [
        Stream(f"{corpora}/web/train", name="web"),
        Stream(folder, name="chats", chat=last),
    ]
    more: dict[str, Any] = {"batch_size": 4, "epochs": 1, "num_lanes": 4, "num_workers": 0}
    with CloudLoader(**config, **more, eos="<|endoftext|>", local=tmp_path / "cache") as loader:
        list(loader)
        web, chats = loader.stats().streams.values()
    assert web.trained == web.tokens > 0
    assert 0 < (chats.trained or 0) < chats.tokens

    for given, chat in (("x.jinja", Chat("x.jinja")), ({}, Chat()), (None, None)):
        config = config_from_yaml({"remote": folder, "chat": given})
        assert config.get("chat") == chat
        assert config_from_yaml({"streams": {"a": {"remote": "b", "chat": given}}})["data"] == [
            Stream("b", name="a", chat=chat or "same")
        ]
    for wrong, message in (
        ({"train": "some"}, r"streams\.chats\.chat: train of Chat is 'some'"),
        ({"max_token": 9}, r"streams\.chats\.chat: .*max_token.*max_tokens"),
        (3, r"streams\.chats\.chat is 3\. Use a string or keys"),
    ):
        dataset["streams"]["chats"]["chat"] = wrong
        with pytest.raises(ValueError, match=f"(?s)dataset\\.{message}"):
            config_from_yaml({"dataset": dataset})


def test_token_ids_are_read_with_the_yamls_encoding_type(tmp_path: Path) -> None:
    documents = [np.arange(n, n + 8).astype("<u2").tobytes() for n in range(6)]
    write_mds(tmp_path / "data", documents, column="tokens", encoding="bytes")
    dataset = {"local": str(tmp_path / "data"), "max_seq_len": 8, "token_encoding_type": "uint16"}
    config = config_from_yaml(dataset)
    assert (config["tokens_key"], config["tokens_dtype"]) == ("tokens", "uint16")
    alone: dict[str, Any] = {"batch_size": 1, "epochs": 1, "num_lanes": 1, "num_workers": 0}
    loader = CloudLoader(**config, **alone, local=tmp_path / "cache")
    assert rows_of(loader) == [[*range(n, n + 8)] for n in range(6)]


# ---------------------------------------------------------------- interpolations


@pytest.mark.parametrize(
    ("content", "resolved"),
    [
        ({"a": 2048, "b": "${a}"}, 2048),
        ({"a": {"c": [None, 3]}, "b": "${a.c.1}"}, 3),
        ({"a": "x", "b": "${c}-${a}", "c": "s3://${a}/y"}, "s3://x/y-x"),
        ({"a": {"c": "${d}"}, "b": "${a}", "d": 1}, {"c": 1}),
        ({"a": None, "b": "${a}"}, None),
        ({"a": "c", "b": "${d.${a}}", "d": {"c": 1}}, 1),
        ({"b": "$a{}"}, "$a{}"),
    ],
)
def test_an_interpolation_has_the_value_at_its_path(content: dict[str, Any], resolved: Any) -> None:
    assert resolve(content["b"], content, "b") == resolved


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"b": "${a}"}, r"b has \$\{a\}, but the YAML has no key"),
        ({"a": "${b}", "b": "x${a}"}, r"has \$\{a\}, which refers to itself"),
        ({"b": ["${oc.env:HOME}"]}, r"b\.0 has \$\{oc.env:HOME\}.*Pass OmegaConf.load"),
        ({"b": {"c": "${.d}", "d": 1}}, r"b\.c has \$\{\.d\}.*Pass OmegaConf.load"),
        (
            {"a": None, "b": "${a}/web"},
            r"b has \$\{a\} within a string, but the value of a is None",
        ),
    ],
)
def test_an_interpolation_that_has_no_value_is_refused(
    content: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(content["b"], content, "b")


# ---------------------------------------------------------------- what is refused


FAULTS = [
    # (text in the YAML, what replaces it, the error)
    ("shuffle: true", "shufle: true", r"the key {set}\.shufle\..*mean shuffle?"),
    ("shuffle: true", "packing_ratio: 3", r"the key {set}\.packing_ratio\. .*Remove it"),
    ("shuffle: true", "shuffle: 1", r"{set}\.shuffle is 1. Use true or false"),
    ("1e2", "1.5", "dataset.shuffle_block_size is 1.5. Use an integer"),
    ("0.7", "high", "dataset.streams.web.proportion is 'high'. Use a number"),
    ("0.7", "-1", "{set}: the streams' proportions are .-1, 0.3."),
    ("      proportion: 0.7", "", "{set}: some streams have a prop"),
    ("proportion: 0.3", "repeat: 1", "{set}: some streams have a prop"),
    ("split: train_small", "repeat: 2", "books/train has repeat or choose, .*a proportion"),
    ("split: train_small", "splits: 2", r"streams.books.splits\. .*Did you mean split?"),
    ("      books:\n", "      books:\n      more:\n", "streams.books has no keys"),
    ("    streams:", "    remote: x\n    streams:", "dataset: .*either streams, or remote or"),
    ("  drop_last: true", "  drop: true", r"the key train_loader.drop\..*Did you mean drop_last"),
    ("name: text", "name: finetuning", "train_loader.name is 'finetuning', but .* only loaders"),
    ("train_loader:", "trainloader:", "there is neither a key train_loader nor a key dataset"),
    ("${max_seq_len}", "${max_len}", r"dataset.max_seq_len has \$\{max_len\}, but the YAML has"),
    ("seq_len: 16", "seq_len: long", r"{set}\.max_seq_len is 'long'"),
    (
        "  drop_last: true",
        "  num_workers: 1",
        "line 46 is not valid YAML: the key 'num_workers' is",
    ),
    ("variables:", "variables: [", r"line \d+ is not valid YAML: expected"),
    ("  name: ${variables.tokenizer_name}", "", "tokenizer.name is missing"),
    ("  kwargs:", "  kwargs: many\n  more:", "tokenizer.kwargs is 'many'. Use keys"),
]


@pytest.mark.parametrize(("old", "new", "message"), FAULTS)
def test_a_fault_is_named_with_the_file_and_the_key(
    training: Path, old: str, new: str, message: str
) -> None:
    assert old in training.read_text()
    training.write_text(training.read_text().replace(old, new, 1))
    expected = message.replace("{set}", r"train_loader\.dataset")
    with pytest.raises(ValueError, match=expected) as caught:
        config_from_yaml(training)
    assert str(caught.value).startswith(f"{training}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("streams: &all {web: *all}", "a YAML anchor refers to itself"),
        *(
            (text, "the file (is not valid YAML|has no keys)")
            for text in ("", "- 1", "\x00", "train")
        ),
    ],
)
def test_what_is_no_training_yaml_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "other.yaml").write_text(text)
    with pytest.raises(ValueError, match=rf"other\.yaml: {message}"):
        config_from_yaml(tmp_path / "other.yaml")


def test_a_list_of_loaders_needs_a_place_in_it(training: Path) -> None:
    with pytest.raises(ValueError, match=r"eval_loader is a list .*loader='eval_loader\.0'"):
        config_from_yaml(training, "eval_loader")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("eos_token_id", 0, "CloudLoader ignores train_loader.dataset.eos_token_id=0.*eos"),
        ("mlm_probability", 0.15, "dataset.mlm_probability=0.15.*next-token"),
        ("batching_method", "stratified", "batching_method='stratified'.*single order"),
        ("replication", 8, "replication=8.*device_mesh"),
        ("keep_zip", True, "keep_zip=True.*only raw shards"),
    ],
)
def test_a_key_without_a_counterpart_is_named_in_a_warning(
    training: Path, caplog: pytest.LogCaptureFixture, key: str, value: Any, message: str
) -> None:
    content = parse(training)
    content["train_loader"]["dataset"][key] = value
    with caplog.at_level(logging.WARNING, "cloudload"):
        config_from_yaml(content)
    texts = {record.getMessage() for record in caplog.records if record.levelname == "WARNING"}
    assert texts
    assert all(re.search(message, text) for text in texts)
