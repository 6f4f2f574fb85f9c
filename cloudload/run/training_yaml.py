"""llm-foundry's training YAML as options of a loader.

    max_seq_len: 2048                                        seq_len
    tokenizer: {name: gpt2}                                  tokenizer
    train_loader: {num_workers: 8, drop_last: true,   ─►     num_workers, tail
      dataset: {streams: …, shuffle_seed: 17, …}}            data, seed, …
    model, optimizer, …                                      not read

YAML is read as OmegaConf reads it, with numbers such as `1e6` and with interpolations:

    variables: {bucket: s3://my-bucket}
    remote: ${variables.bucket}/c4         ─► resolve ─►    s3://my-bucket/c4

Only values that a caller requests are resolved, so the rest of a file may contain interpolations
that only OmegaConf supports.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from cloudload.config import Chat
from cloudload.data import Retry, explain, redact, urls
from cloudload.errors import TokenizerError
from cloudload.run.streaming_arguments import DatasetArguments, StreamArguments, options_of
from cloudload.system import option_help

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

_INTERPOLATION = re.compile(r"\$\{([^{}]*)\}")
_KEYS = re.compile(r"[\w-]+(\.[\w-]+)*")
_EXPONENT = re.compile(r"[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+$")


@dataclass(frozen=True)
class TextStreamArguments(StreamArguments):
    """The arguments of a stream of llm-foundry's text dataset, and one of cloudload's own."""

    chat: str | dict[str, Any] | None = None
    """The options of `Chat`, or a template."""


@dataclass(frozen=True)
class TextDatasetArguments(DatasetArguments):
    """The arguments of llm-foundry's text dataset: StreamingDataset's arguments, and more."""

    streams: tuple[TextStreamArguments, ...] = ()
    max_seq_len: int | None = None
    tokenizer_name: str | None = None
    eos_token_id: int | None = None
    bos_token_id: int | None = None
    override_eos_token_id_mismatch_error: bool = False
    override_bos_token_id_mismatch_error: bool = False
    mlm_probability: float | None = None
    seq_parallel_replication: int | None = None
    token_encoding_type: str | None = None
    chat: str | dict[str, Any] | None = None
    """The default options of `Chat` for the streams, or a template."""


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


@option_help.suggests_names
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
    has the global batch size. The key `chat` of a dataset or a stream, which llm-foundry does not
    have, is a template or the options of `Chat`. Reads the datasets' indexes if streams have
    proportions, or the dataset has an `epoch_size`.

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
        chats = [
            _read_chat(each.chat, join_keys(path, f"streams.{name}"))
            for name, each in zip(names, dataset.streams, strict=True)
        ]
        options["data"] = [
            replace(stream, name=name, chat=chat or stream.chat)
            for stream, name, chat in zip(options["data"], names, chats, strict=True)
        ]
    options["chat"] = _read_chat(dataset.chat, path)
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
        names = " or ".join(repr(f"{path}.{index}") for index in range(len(found)))
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
        name: _build(TextStreamArguments, each, f"{path}.{name}") for name, each in found.items()
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
        inner = join_keys(path, key)
        if key not in hints:
            near = difflib.get_close_matches(key, hints, 1)
            advice = f"Did you mean {near[0]}?" if near else "Remove it if it is not needed"
            raise ValueError(f"cloudload does not recognize the key {inner}. {advice}")
        if value is not None:
            values[key] = _convert(value, hints[key], inner)
    return kind(**values)


def _convert(value: Any, hint: Any, path: str) -> Any:
    """Convert a value to the type of its field. A whole float, such as 1e6, can be an integer."""
    hints = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kinds = [get_origin(each) or each for each in hints]
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


def _read_chat(given: str | dict[str, Any] | None, path: str) -> Chat | None:
    """Return the options of conversations of a dataset or a stream, whose path is given."""
    try:
        if isinstance(given, str):
            return Chat(given)
        return None if given is None else Chat(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{join_keys(path, 'chat')}: {error}") from None


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


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no type hints
    """A safe YAML loader: `1e6` is a number, a date is text, and a repeated key is an error."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # keyed by first letter, as in SafeLoader
        letter: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is repeated", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def read_yaml(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Read a YAML file. Raises `ValueError` if it is not valid, or not a mapping."""
    try:
        content = yaml.load(urls.expand_home(path).read_text("utf-8"), _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{explain_yaml_error(error)}. Correct the file") from error
    if not isinstance(content, Mapping):
        raise ValueError("the file has no keys. Pass the YAML of a training run, or of a dataset")
    return content


def explain_yaml_error(error: Exception) -> str:
    """Say where and why a text is not valid YAML, without quoting it. It may contain secrets."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1} is not valid YAML: {error.problem}"
    return f"the file is not valid YAML: {explain(error)}"


def look_up(root: Any, path: str) -> Any:
    """Return the value at a path such as `eval_loader.0.dataset`, or raise `KeyError`."""
    value = root
    for key in path.split("."):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif is_list(value) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise KeyError(path)
    return value


def resolve(value: Any, root: Mapping[str, Any], path: str, passed: tuple[str, ...] = ()) -> Any:
    """Return a value as plain dicts and lists, with its interpolations resolved.

    `path` is the path of the value, and `passed` lists the interpolations that led to it. Raises
    `ValueError` for an interpolation that is not the path of a value in `root`.
    """
    if isinstance(value, Mapping):
        return {
            str(key): resolve(each, root, join_keys(path, key), passed)
            for key, each in value.items()
        }
    if is_list(value):
        return [resolve(each, root, join_keys(path, n), passed) for n, each in enumerate(value)]
    if not isinstance(value, str) or not _INTERPOLATION.search(value):
        return value
    if whole := _INTERPOLATION.fullmatch(value):
        return _follow(whole[1], root, path, passed)
    text = _INTERPOLATION.sub(lambda part: _follow_in_text(part[1], root, path, passed), value)
    return resolve(text, root, path, passed)  # `${a.${b}}` is resolved from the inside out


def join_keys(path: str, key: object) -> str:
    """Return the path of `key` below `path`. An empty `path` is the top level."""
    return f"{path}.{key}" if path else f"{key}"


def is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _follow(name: str, root: Mapping[str, Any], path: str, passed: tuple[str, ...]) -> Any:
    """Return the value of the interpolation `${name}`."""
    if not _KEYS.fullmatch(name):
        raise ValueError(
            f"{path} has ${{{name}}}, but without OmegaConf, cloudload resolves only paths such as "
            "${variables.remote}. Pass OmegaConf.load(the file) instead of the file"
        )
    if name in passed:
        raise ValueError(
            f"{path} has ${{{name}}}, which refers to itself, directly or through other keys. "
            f"Replace ${{{name}}} with a value"
        )
    try:
        value = look_up(root, name)
    except KeyError:
        raise ValueError(
            f"{path} has ${{{name}}}, but the YAML has no key {name}. Add the key, or pass the "
            "whole YAML"
        ) from None
    return resolve(value, root, name, (*passed, name))


def _follow_in_text(name: str, root: Mapping[str, Any], path: str, passed: tuple[str, ...]) -> str:
    value = _follow(name, root, path, passed)
    if not isinstance(value, str | int | float):
        raise ValueError(
            f"{path} has ${{{name}}} within a string, but the value of {name} is {value!r}. Set "
            f"{name} to a string or a number"
        )
    return str(value)
