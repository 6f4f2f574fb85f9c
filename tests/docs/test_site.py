"""The documentation leaves nothing out, and its generated parts follow the code."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import pytest

from cloudload import CloudLoader, Retry, Stream, errors
from scripts import docs_site, draw_throughput
from tests.support import ROOT

TABLES = ("CloudLoader", "RowsConfig", "DeliveryConfig")


def listed_in(table: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)`", docs_site.options_table(table), re.MULTILINE))


def test_the_reference_lists_every_argument_of_the_loader_once() -> None:
    parameters = inspect.signature(CloudLoader).parameters.keys()
    listed = [name for table in TABLES for name in listed_in(table)]
    assert sorted(listed) == sorted(parameters)


@pytest.mark.parametrize("config", [Stream, Retry])
def test_the_reference_lists_every_field_of_a_config(config: type) -> None:
    assert listed_in(config.__name__) == {field.name for field in fields(config)}


def test_the_reference_lists_every_error_and_kind_of_failure() -> None:
    page = docs_site.errors_reference()
    raised = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    for name in [*raised, *(kind.name for kind in errors.FailureKind)]:
        assert f"`{name}`" in page


def test_the_reference_has_the_help_of_every_command() -> None:
    page = docs_site.cli_help()
    subcommands = ("convert", "check", "info", "head", "trace", "where", "rows", "export")
    for command in ("cloudload", *(f"cloudload {name}" for name in subcommands)):
        assert f"## {command}\n\n```text\nusage: {command} [-h]" in page


def test_a_listing_of_a_docstring_becomes_a_table() -> None:
    page = docs_site.fill_markers("<!-- generated: docstring cloudload.run.state -->")
    assert "| `table_rows` | " in page
    assert "generated" not in page


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("docs/performance.md", "../benchmarks/RESULTS.md", "benchmarks/RESULTS.md"),
        ("docs/guides/faults.md", "../../benchmarks/FAULTS.md", "../benchmarks/FAULTS.md"),
        (
            "docs/guides/frameworks/torch.md",
            "../../../examples/train_torch.py",
            "../../examples/train_torch.md",
        ),
        ("CONTRIBUTING.md", "docs/contributing/vocabulary.md", "contributing/vocabulary.md"),
        ("docs/guides/mixing.md", "packing.md", "packing.md"),
    ],
)
def test_links_work_in_the_repository_and_on_the_site(
    source: str, link: str, expected: str
) -> None:
    assert docs_site.rewrite_links(f"[it]({link}#here)", source) == f"[it]({expected}#here)"


def test_links_between_files_of_the_repository_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_figure_of_throughput_follows_the_results() -> None:
    assert draw_throughput.draw() == draw_throughput.FIGURE.read_text("utf-8")


def test_the_readme_has_at_most_200_lines() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 200
