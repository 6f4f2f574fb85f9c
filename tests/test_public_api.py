"""The public import paths of the first release still work, and `dir` shows only public names."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import cloudload

FIRST_RELEASE = {
    "cloudload": [
        "Batch",
        "CloudLoader",
        "CloudloadError",
        "FromStart",
        "Retry",
        "Stream",
        "__version__",
        "convert_to_mds",
    ],
    "cloudload.batch": ["Batch"],
    "cloudload.cli": ["main"],
    "cloudload.config": ["Stream"],
    "cloudload.convert": ["convert_to_mds"],
    "cloudload.errors": [
        "CacheError",
        "CloudloadError",
        "ConvertError",
        "DatasetError",
        "RanksDisagreeError",
        "StoreError",
        "StreamChangedError",
        "TokenizerError",
        "WorkerError",
    ],
    "cloudload.loader": ["CloudLoader"],
    "cloudload.provenance": [
        "Occurrence",
        "Run",
        "find_document",
        "find_samples",
        "load_state",
        "open_run",
        "open_runs",
        "split_steps",
        "trace_steps",
    ],
    "cloudload.segments": [
        "IGNORED_LABEL",
        "cu_seqlens",
        "document_attention_mask",
        "mask_document_edges",
        "position_ids",
        "segment_ids",
    ],
    "cloudload.stats": ["DeliveryStats", "Stats", "StreamStats"],
    "cloudload.testing": [
        "Leg",
        "MakeLoader",
        "Row",
        "assert_same_rows",
        "check_resume",
        "check_worlds",
        "real_tokens",
        "run_leg",
        "run_legs",
    ],
}
INTEGRATIONS = {
    "composer": ["CloudloadMonitor", "data_spec", "eval_spec", "split_batch"],
    "dcp": ["LoaderState"],
    "lightning": ["CloudloadDataModule", "CloudloadMonitor"],
    "torchdata": ["CloudloadDataset", "CloudloadNode"],
    "torchtitan": ["CloudloadDataLoader", "CloudloadMetrics"],
    "transformers": ["CloudloadCallback", "CloudloadTrainer", "check_packed_rows"],
}
ADDED = [
    *("Chat", "CheckReport", "ConvertReport", "CountReport", "Documents", "EncodeContext", "Fim"),
    *("ExportReport", "Finding", "RowContext", "Rows", "TokenIds"),
    *(
        "Stats",
        "Text",
        "TracedSpan",
        "check_dataset",
        "config_from_yaml",
        "count_tokens",
        "export_rows",
        "SelectReport",
        "select_documents",
    ),
]
PATHS = [(module, name) for module, names in FIRST_RELEASE.items() for name in names]


@pytest.mark.parametrize(("module", "name"), PATHS)
def test_every_public_import_of_the_first_release_works(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None


@pytest.mark.parametrize("framework", INTEGRATIONS)
def test_every_public_import_of_an_integration_works(framework: str) -> None:
    """Parses the source instead of importing it, because most frameworks cannot be co-installed."""
    source = Path(cloudload.__file__).parent / "integrations" / f"{framework}.py"
    defined = {
        node.name
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    assert set(INTEGRATIONS[framework]) <= defined


def test_dir_shows_the_public_names_alone() -> None:
    public = sorted([*FIRST_RELEASE["cloudload"], *ADDED])
    assert dir(cloudload) == public
    assert sorted([*cloudload.__all__, "__version__"]) == public


def test_every_public_name_is_the_object_of_its_home() -> None:
    for name in cloudload.__all__:
        found = getattr(cloudload, name)
        assert found.__name__ == name
        assert getattr(import_module(found.__module__), name) is found
        assert found.__doc__, f"{name} has no docstring"


def test_the_errors_are_one_tree() -> None:
    from cloudload import errors

    found = [error for error in vars(errors).values() if isinstance(error, type)]
    trees = [error for error in found if issubclass(error, Exception)]
    assert {error.__name__ for error in trees} >= set(FIRST_RELEASE["cloudload.errors"])
    assert all(issubclass(error, cloudload.CloudloadError) for error in trees)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'cloudload' has no attribute 'nothing'"):
        _ = cloudload.nothing
