"""llm-foundry's training YAML as options of a loader.

max_seq_len: 2048                                        seq_len
tokenizer: {name: gpt2}                                  tokenizer
train_loader: {num_workers: 8, drop_last: true,   ─►     num_workers, tail
  dataset: {streams: …, shuffle_seed: 17, …}}            data, seed, …
model, optimizer, …                                      not read
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from cloudload.data.storage.base import Retry
from cloudload.data.storage.redaction import redact
from cloudload.errors import TokenizerError
from cloudload.run.streaming.arguments import DatasetArguments, StreamArguments, options_of
from cloudload.run.streaming.yaml_files import (
    is_list,
    join_keys,
    look_up,
    read_yaml,
    resolve,
)
from cloudload.system.option_names import suggests_names

logger = logging.getLogger("cloudload.streaming")
T = TypeVar("T")

_NAMES = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    dict: "keys",
}
# (key of an llm-foundry dataset, the warning's text if it is set)
_WITHOUT_COUNTERPART = (
    (
        "eos_token_id",
        "Documents end with the loader's eos. To number the documents of each row, pass "
        "fields=['segment_ids']",
    ),
    ("bos_token_id", "Documents begin with the loader's bos"),
    ("mlm_probability", "Labels are for next-token prediction"),
    ("seq_parallel_replication", "Pass device_mesh, or dp_rank and dp_world_size"),
)


@dataclass(frozen=True)
class TextDatasetArguments(DatasetArguments):
    """The arguments of llm-foundry's text dataset: StreamingDataset's arguments, and more."""

    max_seq_len: int | None = None
    tokenizer_name: str | None = None
    eos_token_id: int | None = None
    bos_token_id: int | None = None
    override_eos_token_id_mismatch_error: bool = False
    override_bos_token_id_mismatch_error: bool = False
    mlm_probability: float | None = None
    seq_parallel_replication: int | None = None
    token_encoding_type: str | None = None


@dataclass(frozen=True)
class TextLoaderArguments:
    """The arguments of llm-foundry's text dataloader, without its dataset.

    None means that the YAML does not set the argument.
    """

    name: str = "text"
    label: str | None = None
    drop_last: bool | None = None
    num_workers: int | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class TokenizerArguments:
    """A tokenizer's name, and other arguments of `AutoTokenizer.from_pretrained`."""

    name: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)


@suggests_names
def config_from_yaml(
    source: str | os.PathLike[str] | Mapping[str, Any], loader: str = "train_loader"
) -> dict[str, Any]:
    """Return the options of a `CloudLoader` for the data of an llm-foundry training YAML.

        config = config_from_yaml("train.yaml")
        loader = CloudLoader(**config, batch_size=8)

    Args:
        source: path of the YAML, or its content: a dict, or a `DictConfig` of OmegaConf. The
            content is a whole training YAML, one of its loaders, or a loader's dataset.
        loader: the loader to read in a whole YAML, such as `eval_loader`, or `eval_loader.0` in a
            list.

    Returns the options that are equivalent to the YAML and to Streaming's defaults. `tokenizer` and
    `seq_len` are included if the YAML has them. `batch_size` is never included, because the YAML
    has the global batch size. Reads the datasets' indexes if streams have proportions, or the
    dataset has an `epoch_size`.

    Logs a warning for each key of the dataset that has no counterpart. Raises `ValueError`, which
    names the file and the key, for an unknown key, an invalid value, a loader that is not for text,
    and an interpolation other than `${path.of.a.key}`. To use other interpolations, pass a
    `DictConfig`.
    """
    name = "the mapping" if isinstance(source, Mapping) else os.fspath(source)
    try:
        root = source if isinstance(source, Mapping) else read_yaml(source)
        if isinstance(root.get("parameters"), Mapping):
            root = root["parameters"]  # a YAML for MosaicML's platform nests the training YAML
        return _read_options(root, loader)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    except RecursionError:
        raise ValueError(
            f"{name}: a YAML anchor refers to itself. Replace the reference with a value"
        ) from None


def _read_options(root: Mapping[str, Any], loader: str) -> dict[str, Any]:
    arguments, content, path = _find_dataset(root, loader)
    dataset = _read_dataset(content, path)
    for name, instead in _WITHOUT_COUNTERPART:
        if (value := getattr(dataset, name)) != getattr(TextDatasetArguments, name):
            logger.warning("CloudLoader ignores %s=%r. %s", join_keys(path, name), value, instead)
    try:
        options = options_of(dataset, Retry())
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if path else f"{error}") from None
    if names := tuple(content.get("streams") or ()):
        options["data"] = [
            replace(stream, name=name) for stream, name in zip(options["data"], names, strict=True)
        ]
    options |= _options_of_loader(arguments)
    if dataset.token_encoding_type is not None:
        # llm-foundry names the column "tokens"
        options |= {"tokens_key": "tokens", "tokens_dtype": dataset.token_encoding_type}
    options["tokenizer"] = dataset.tokenizer_name or _find_tokenizer(root)
    options["seq_len"] = dataset.max_seq_len or _find_seq_len(root)
    return {name: value for name, value in options.items() if value is not None}


def _find_dataset(
    root: Mapping[str, Any], loader: str
) -> tuple[TextLoaderArguments, dict[str, Any], str]:
    """Return the arguments of a loader, and the content and the path of its dataset."""
    if root.keys() & {"streams", "remote", "local"}:
        return TextLoaderArguments(), resolve(root, root, ""), ""
    try:
        path, found = loader, look_up(root, loader)
    except KeyError:
        path, found = "", root
        if "dataset" not in root:
            raise ValueError(
                f"there is neither a key {loader} nor a key dataset. Pass the YAML of a training "
                "run and the name of one of its loaders, or the YAML of a dataset with streams, "
                "remote or local"
            ) from None
    found = resolve(found, root, path)
    if is_list(found):
        names = " or ".join(repr(f"{path}.{place}") for place in range(len(found)))
        raise ValueError(f"{path} is a list of loaders. Pass loader={names}")
    if not isinstance(found, dict) or not isinstance(content := found.pop("dataset", None), dict):
        raise ValueError(
            f"{join_keys(path, 'dataset')} is missing or has no keys. Set streams, remote or local "
            "in it"
        )
    arguments = _build(TextLoaderArguments, found, path)
    if arguments.name != "text":
        raise ValueError(
            f"{join_keys(path, 'name')} is {arguments.name!r}, but cloudload reads only loaders "
            "with the name 'text', which are for pretraining. If the samples of this loader are "
            "text, pass only the dataset of the loader"
        )
    return arguments, content, join_keys(path, "dataset")


def _read_dataset(given: Mapping[str, Any], path: str) -> TextDatasetArguments:
    own = {key: value for key, value in given.items() if key != "streams"}
    dataset = _build(TextDatasetArguments, own, path)
    path = join_keys(path, "streams")
    found = given.get("streams") or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"{path} has no keys. Use a mapping from names to streams")
    streams = {
        name: _build(StreamArguments, each, f"{path}.{name}") for name, each in found.items()
    }
    for name, stream in streams.items():
        if not (stream.remote or stream.local):
            raise ValueError(
                f"{path}.{name} has neither remote nor local. Set remote to the URL of the stream"
            )
    return replace(dataset, streams=tuple(streams.values()))


def _build(kind: type[T], given: Any, path: str) -> T:
    """Create a dataclass from the keys of a mapping. A key without a value gets its default."""
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{path} has no keys. Set keys such as {', '.join([*get_type_hints(kind)][:3])}"
        )
    hints, values = get_type_hints(kind), {}
    for key, value in given.items():
        place = join_keys(path, key)
        if key not in hints:
            near = difflib.get_close_matches(key, hints, 1)
            advice = f"Did you mean {near[0]}?" if near else "Remove it if it is not needed"
            raise ValueError(f"cloudload does not recognize the key {place}. {advice}")
        if value is not None:
            values[key] = _convert(value, hints[key], place)
    return kind(**values)


def _convert(value: Any, hint: Any, path: str) -> Any:
    """Convert a value to the type of its field. A whole float, such as 1e6, can be an integer."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (get_origin(hint) or hint,)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, float) and int in kinds and value.is_integer():
        value = int(value)
    if type(value) in kinds or (type(value) is int and float in kinds):
        return value
    wanted = " or ".join(_NAMES[kind] for kind in kinds if kind in _NAMES)
    raise ValueError(f"{path} is {redact(repr(value))}. Use {wanted}")


def _options_of_loader(loader: TextLoaderArguments) -> dict[str, Any]:
    tails = {True: "drop", False: "pad", None: None}
    return {
        "tail": tails[loader.drop_last],
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        # a DataLoader's prefetch_factor applies to each worker
        "prefetch_batches": (loader.prefetch_factor or 0) * (loader.num_workers or 0) or None,
    }


def _find_seq_len(root: Mapping[str, Any]) -> int | None:
    found = resolve(root.get("max_seq_len"), root, "max_seq_len")
    seq_len: int | None = _convert(found, int | None, "max_seq_len")
    return seq_len


def _find_tokenizer(root: Mapping[str, Any]) -> Any:
    """Return the tokenizer of a training YAML: its name, an object if it has arguments, or None."""
    found = resolve(root.get("tokenizer"), root, "tokenizer")
    if found is None:
        return None
    tokenizer = _build(TokenizerArguments, found, "tokenizer")
    if not tokenizer.name:
        raise ValueError("tokenizer.name is missing. Set it to a name on the Hugging Face Hub")
    # model_max_length has no effect, because documents are never truncated
    arguments = {key: each for key, each in tokenizer.kwargs.items() if key != "model_max_length"}
    if not arguments:
        return tokenizer.name
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(tokenizer.name, **arguments)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(". ")
        raise TokenizerError(
            f"cannot load the tokenizer {tokenizer.name!r} with {', '.join(arguments)}: "
            f"{redact(reason)}. Remove the tokenizer from the YAML, and pass "
            "CloudLoader(tokenizer=…)"
        ) from error
