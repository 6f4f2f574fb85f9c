"""Find the loader's state in a checkpoint of any training framework, without running its code.

    file      JSON, or written by torch.save
    folder    torch.distributed.checkpoint             its entries named `cloudload`
              transformers, accelerate, or Lightning   the files in `_STATE_FILES`

The state may be nested in mappings, lists and objects, and in text that is JSON.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from cloudload.errors import StreamChangedError

_STATE_FILES = ("trainer_state.json", "custom_checkpoint_*.pkl", "meta.pt")
_MOST_TRIED, _MOST_NAMED = 20, 5
_METADATA_NAME = ".metadata"
_STATE_KEY = "cloudload"
_STATE_FIELDS = frozenset({"cursors", "table_rows", "version"})


def load_state(path: str | Path) -> dict[str, Any]:
    """Load the cloudload state from a checkpoint: a JSON file, a torch file, or a folder.

    A torch file is one that `torch.save` wrote. A folder is a checkpoint of
    `torch.distributed.checkpoint`, torchtitan, Composer, transformers, accelerate or Lightning.
    Does not run code from the checkpoint or load tensors. Raises `StreamChangedError` if the
    checkpoint has another format or no state, and `OSError` if it cannot be read.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"the checkpoint {path} does not exist")
    for content in _load_folder(path) if path.is_dir() else [_load_file(path)]:
        if found := _find_state(content):
            return found
    if path.is_dir() and (inside := list(_list_checkpoints(path))):
        raise StreamChangedError(
            f"{path} is not a single checkpoint. Pass one of those in it: {', '.join(inside)}"
        )
    raise StreamChangedError(
        f"{path} has no cloudload state. Use a checkpoint that contains loader.state_dict()"
    )


def _list_checkpoints(folder: Path) -> Iterator[str]:
    """Yield the names of up to 5 checkpoints with a state directly in a folder, latest first."""
    with suppress(OSError):
        names = sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        found = 0
        for path in names[:_MOST_TRIED]:
            with suppress(StreamChangedError, OSError):
                contents = _load_folder(path) if path.is_dir() else iter([_load_file(path)])
                if any(_find_state(content) for content in contents):
                    yield path.name
                    found += 1
            if found == _MOST_NAMED:
                return


def _load_folder(folder: Path) -> Iterator[Any]:
    if (folder / _METADATA_NAME).exists():
        yield from _load_distributed(folder)
    for pattern in _STATE_FILES:
        yield from map(_load_file, sorted(folder.glob(pattern)))


def _load_file(path: Path) -> Any:
    with path.open("rb") as file:
        try:
            return _load_torch(file) if zipfile.is_zipfile(file) else json.loads(path.read_bytes())
        except OSError:
            raise
        except Exception as error:
            raise StreamChangedError(
                f"{path} is neither JSON nor a torch checkpoint ({type(error).__name__}: "
                f"{error!s:.200}). Save loader.state_dict() with json.dump or torch.save"
            ) from error


def _load_distributed(folder: Path) -> Iterator[Any]:
    """Load the entries of a distributed checkpoint that are named `cloudload`."""
    path = folder / _METADATA_NAME
    try:
        with path.open("rb") as file:
            entries = _RecordUnpickler(file).load().storage_data
        for index, entry in entries.items():
            if index.fqn.rpartition(".")[2] == _STATE_KEY:
                with _path_inside(folder, entry.relative_path).open("rb") as file:
                    file.seek(entry.offset)
                    yield _load_torch(io.BytesIO(file.read(entry.length)))
    except OSError:
        raise
    except Exception as error:
        raise StreamChangedError(
            f"cannot read the distributed checkpoint {folder} ({error!r:.200}). Use a different "
            "checkpoint"
        ) from error


def _path_inside(folder: Path, name: Any) -> Path:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{name} is outside the checkpoint")
    return Path(folder, name)


def _load_torch(file: BinaryIO) -> Any:
    """Load an object that `torch.save` wrote, except for its tensors."""
    with zipfile.ZipFile(file) as archive:
        [entry] = [each for each in archive.infolist() if each.filename.endswith("/data.pkl")]
        # torch.save does not compress, and a compressed entry could be of any size
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{entry.filename} is compressed")
        with archive.open(entry) as pickled:
            return _RecordUnpickler(pickled).load()


class _Record:
    """A stand-in for an object of any class. It has the object's data, but no behavior."""

    def __new__(cls, *_: Any, **__: Any) -> _Record:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            vars(self).update(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        vars(self)[str(key)] = value

    def append(self, value: Any) -> None:
        vars(self)[str(len(vars(self)))] = value


class _RecordUnpickler(pickle.Unpickler):
    """Unpickles mappings, lists and plain values. Every other object becomes a `_Record`."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        # a class within a class is pickled as a call to getattr
        return (lambda *_: _Record) if name == "getattr" else _Record

    def persistent_load(self, identifier: Any) -> _Record:
        return _Record()


def _find_state(content: Any) -> dict[str, Any] | None:
    """Return the first state in nested content, or None. The content may contain itself."""
    stack, seen = [content], dict[int, Any]()
    while stack:
        found = stack.pop()
        if isinstance(found, str) and "table_rows" in found:
            with suppress(ValueError, RecursionError):
                found = json.loads(found)
        if isinstance(found, _Record):
            found = vars(found)
        if id(found) in seen or not isinstance(found, Mapping | list | tuple):
            continue
        seen[id(found)] = found
        if isinstance(found, Mapping) and found.keys() >= _STATE_FIELDS:
            return dict(found)
        stack += reversed(list(found.values()) if isinstance(found, Mapping) else found)
    return None
