"""The files of a dataset on the Hugging Face Hub: those of one config and one split.

    hf://owner/name              the default config, or all data files
    hf://owner/name/en           the config en, or the folder en/ or data/en/
    hf://owner/name@v1.0/en?split=validation

    card      configs: [{config_name: default, data_files: [{split: train, path: data/*/*}]}, …]
    names     en/train-00000-of-00002.parquet, …     a split is a word in a file's path

A dataset without files of records is read as rows, by the package `datasets`. The files are those
of one commit, so a conversion never mixes two versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cloudload.data import (
    Location,
    contains_secrets,
    file_kinds,
    globs,
    hub,
    nearby,
    redact,
    urls,
)
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert.found_files import FolderFiles
from cloudload.tools.convert.input_files import InputFile

_CARD = "README.md"
_MOST_CARD_BYTES = 4 << 20
_WORDS = {
    "train": "train training",
    "validation": "validation valid val dev",
    "test": "test testing eval evaluation",
}
_SPLITS = {word: split for split, words in _WORDS.items() for word in words.split()}
_SAMPLE = re.compile(r"(.*[-_])?samples?([-_].*)?")


@dataclass(frozen=True)
class HubName:
    """The parts of `hf://owner/name@revision/config?config=CONFIG&split=SPLIT`."""

    repository: str
    revision: str | None
    config: str | None
    split: str
    has_split: bool
    """Whether the URL or the caller names the split."""

    @staticmethod
    def parse(url: str, split: str | None) -> HubName:
        """Parse a URL, in which a split takes precedence over `split`."""
        parts, shown = urlsplit(url), redact(url)
        query = parse_qs(parts.query)
        if unknown := sorted(set(query) - {"config", "split"}):
            raise ValueError(
                f"{shown} has unknown parameters {unknown}. Only ?config= and &split= are supported"
            )
        chosen, path = query.get("split", [split])[0], parts.netloc + parts.path
        if Path(path).exists():  # a folder of this machine
            names, revision = [path, ""], ""
        else:
            start, _, revision = path.strip("/").partition("@")
            revision, *below = revision.split("/", 1)
            names = [*start.split("/"), *below]
            names = ["/".join(names[:2]), "/".join(names[2:])]
        repository, config = names[0], query.get("config", [names[1] or None])[0]
        return HubName(repository, revision or None, config, chosen or "train", chosen is not None)


def find_hub_files(url: str, split: str | None) -> FolderFiles | None:
    """Return the files of a dataset, or None for a local folder, or without files of records.

    Raises `ConvertError` if the dataset, its config, or its split does not exist, or if the files
    may have the same data twice, and `StoreError` if the Hub cannot be reached.
    """
    name, shown = HubName.parse(url, split), redact(url)
    if Path(name.repository).exists():
        return None
    hub.check_connection()
    try:
        root = Location(f"hf://datasets/{name.repository}@{name.revision or 'main'}").pin()
        listed = {urls.name_below(item.url, root.url): item for item in root.list_objects()}
        card = root.join(_CARD).read(_MOST_CARD_BYTES) if _CARD in listed else b""
    except StoreError:
        raise
    except Exception as error:
        raise ConvertError(
            f"cannot load {shown} (split {name.split!r}). Check its name, config, and split, and "
            f"the connection. The error was {type(error).__name__}: {redact(str(error))}"
        ) from (None if contains_secrets(error) else error)
    names = [each for each in listed if _is_data(each)]
    if not names:
        return None
    chosen = choose_files(names, parse_card(card), name, shown)
    files = [
        InputFile(listed[each].url, each, listed[each].bytes, tag=listed[each].tag)
        for each in chosen
    ]
    return FolderFiles(root.url, files)


def _is_data(name: str) -> bool:
    extension, _ = file_kinds.split_name(name)
    is_known = extension in file_kinds.FORMATS_BY_EXTENSION
    return is_known and not file_kinds.hidden_part(name) and not file_kinds.is_about_data(name)


def parse_card(card: bytes) -> list[Mapping[str, Any]]:
    """Return the configs of a dataset's card that list their files; [] if there are none."""
    import yaml

    parts = re.split(r"(?m)^---\s*$", card.decode(errors="replace"), maxsplit=2)
    try:
        head = yaml.safe_load(parts[1]) if len(parts) == 3 else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    found = head.get("configs") if isinstance(head, dict) else None
    several = found if isinstance(found, list) else []
    return [each for each in several if isinstance(each, dict) and each.get("data_files")]


def choose_files(
    names: Sequence[str], configs: Sequence[Mapping[str, Any]], name: HubName, shown: str
) -> list[str]:
    """Choose the files of a config and a split, by the configs of the card, or else by name.

    Raises `ConvertError`, with `shown` as the name of the dataset, as `find_hub_files` does.
    """
    if configs:
        splits = _list_patterns(_choose_config(configs, name, shown))
        groups = {
            split: [each for each in names if any(one.matches(each) for one in patterns)]
            for split, patterns in splits.items()
        }
    else:
        groups = _group_by_split(_choose_folder(names, name, shown))
    split = name.split
    if split not in groups and len(groups) == 1 and not name.has_split:
        [split] = groups
    if not groups.get(split):
        raise ConvertError(
            f"{shown} has no files of the split {split!r}. Its splits are "
            f"{', '.join(sorted(groups))}. Add one, as in hf://{name.repository}?split=NAME"
        )
    chosen = sorted(groups[split])
    _check_formats(chosen, name, shown)
    return chosen


def _choose_config(
    configs: Sequence[Mapping[str, Any]], name: HubName, shown: str
) -> Mapping[str, Any]:
    by_name = {str(each.get("config_name", "default")): each for each in configs}
    wanted = name.config
    if wanted is None:
        defaults = [key for key, each in by_name.items() if each.get("default") is True]
        wanted = next(iter([*defaults, *(["default"] if "default" in by_name else [])]), None)
        wanted = next(iter(by_name)) if wanted is None and len(by_name) == 1 else wanted
    if wanted in by_name:
        return by_name[str(wanted)]
    missing = "has several configs" if wanted is None else f"has no config {wanted!r}"
    raise ConvertError(
        f"{shown} {missing}. Its configs are {nearby.name_some(list(by_name))}. Add one, as in "
        f"hf://{name.repository}/{next(iter(by_name))}"
    )


def _list_patterns(config: Mapping[str, Any]) -> dict[str, list[globs.Glob]]:
    """Return the patterns of each split of a config."""
    found, folder = config["data_files"], str(config.get("data_dir") or "").strip("/")
    if isinstance(found, dict):
        found = [{"split": split, "path": path} for split, path in found.items()]
    patterns: dict[str, list[globs.Glob]] = {}
    for entry in found if isinstance(found, list) else [found]:
        split, paths = "train", entry
        if isinstance(entry, dict):
            split, paths = str(entry.get("split", "train")), entry.get("path", [])
        for path in paths if isinstance(paths, list) else [paths]:
            pattern = urls.join_url(folder, str(path)) if folder else str(path)
            patterns.setdefault(split, []).append(globs.Glob("", pattern))
    return patterns


def _choose_folder(names: Sequence[str], name: HubName, shown: str) -> list[str]:
    """Return the files in the folder of a config, or all files if no config is given."""
    folders = sorted({each.partition("/")[0] for each in names if "/" in each})
    if name.config is not None:
        for start in (f"{name.config}/", f"data/{name.config}/"):
            if found := [each for each in names if each.startswith(start)]:
                return found
        raise ConvertError(
            f"{shown} has no config {name.config!r}: its card lists none, and no files are in "
            f"{name.config}/ or data/{name.config}/. Its folders are "
            f"{nearby.name_some(folders) if folders else 'none'}. Pass a glob, such as "
            f"'hf://datasets/{name.repository}/**/*.parquet'"
        )
    samples = [each for each in folders if _SAMPLE.fullmatch(each.lower())]
    if samples and len(samples) < len(folders):
        other = next(each for each in folders if each not in samples)
        raise ConvertError(
            f"{shown} has the folders {nearby.name_some(folders)}, so a part of the data may be "
            f"there twice. Pass one of them, as in hf://{name.repository}/{other}"
        )
    return list(names)


def _group_by_split(names: Iterable[str]) -> dict[str, list[str]]:
    """Group files by the split in their path; all are of the split `train` if none has one."""
    groups: dict[str | None, list[str]] = {}
    for name in names:
        words = re.split(r"[^a-z]+", name.lower())
        found = [_SPLITS[word] for word in words if word in _SPLITS]
        groups.setdefault(found[-1] if found else None, []).append(name)
    without = groups.pop(None, [])
    return {str(split): found for split, found in groups.items()} or {"train": without}


def _check_formats(names: Iterable[str], name: HubName, shown: str) -> None:
    """Raise `ConvertError` if files have several formats, which may be copies of the same data."""
    by_format: dict[str, str] = {}
    for each in names:
        extension, _ = file_kinds.split_name(each)
        form = file_kinds.FORMATS_BY_EXTENSION[extension].replace("jsonl", "json")
        by_format.setdefault(form, each)
    if len(by_format) > 1:
        raise ConvertError(
            f"{shown} has files of several formats, such as "
            f"{nearby.join_words(list(by_format.values()))}, which may be copies of the same data. "
            f"Pass a glob of one format, such as 'hf://datasets/{name.repository}/**/*.parquet'"
        )
