"""Read YAML as OmegaConf does, with numbers such as `1e6` and `${variables.max_seq_len}`.

    variables: {bucket: s3://my-bucket}
    remote: ${variables.bucket}/c4         ─► resolve ─►    s3://my-bucket/c4

Only values that a caller requests are resolved, so the rest of a file may contain interpolations
that only OmegaConf supports.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from cloudload.data.storage.redaction import explain
from cloudload.data.storage.urls import expand_home

_INTERPOLATION = re.compile(r"\$\{([^{}]*)\}")
_KEYS = re.compile(r"[\w-]+(\.[\w-]+)*")
_EXPONENT = re.compile(r"[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+$")


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
        content = yaml.load(expand_home(path).read_text("utf-8"), _Loader)
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
