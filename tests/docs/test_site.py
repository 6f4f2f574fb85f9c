"""The documentation is complete, and its generated parts match the code."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudload import CloudLoader, Retry, Stream, errors
from cloudload.data.storage.base import Backend
from scripts import docs_site, draw_fair_start, draw_throughput
from testkit import ROOT

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


def test_the_checklist_for_a_storage_backend_names_every_method() -> None:
    page = (ROOT / "docs/contributing/extend.md").read_text()
    listed = re.search(r"methods of `storage\.base\.Backend` \((.+?)\)", page, re.DOTALL)
    methods = [name for name in vars(Backend) if not name.startswith("_")]
    assert listed is not None
    assert re.findall(r"`(\w+)`", listed[1]) == methods


def test_the_reference_has_the_help_of_every_command() -> None:
    page = docs_site.cli_help()
    subcommands = (
        "convert",
        "index",
        "check",
        "count",
        "info",
        "head",
        "trace",
        "where",
        "rows",
        "plan",
        "state",
        "fetch",
        "export",
    )
    for command in ("cloudload", *(f"cloudload {name}" for name in subcommands)):
        assert f"## {command}\n\n```text\nusage: {command} [-h]" in page


def test_a_listing_of_a_docstring_becomes_a_table() -> None:
    page = docs_site.fill_markers("<!-- generated: docstring cloudload.run.state -->")
    assert "| `table_rows` | " in page


def test_the_pages_in_the_repository_hold_their_generated_text() -> None:
    assert not docs_site.list_outdated(), "pages are out of date. Run python -m scripts.docs_site"
    marked = [path for path in (ROOT / "docs").rglob("*.md") if "<!-- gen" in path.read_text()]
    assert len(marked) >= 5
    for path in marked:
        # the text that a reader of the file sees, without comments and tags
        text = re.sub(r"<[^>]*>", "", path.read_text("utf-8"))
        assert "{ #" not in text
    assert "--shard-bytes SIZE" in (ROOT / "docs/reference/cli.md").read_text("utf-8")


def test_old_and_edited_texts_are_generated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    marker = "<!-- generated: options Retry -->"
    page.write_text(f"# Title\n\n{marker}\n\nBetween.\n\n{marker}\n\nold\n\n<!-- end -->\n\nEnd.\n")
    monkeypatch.setattr(docs_site, "ROOT", tmp_path)
    assert docs_site.main(["--check"]) == 1
    assert (
        "page.md is out of date. To rewrite it, run python -m scripts.docs_site"
        in capsys.readouterr().err
    )
    assert docs_site.main([]) == 0
    assert docs_site.main(["--check"]) == 0
    text = page.read_text()
    assert "old" not in text
    assert text.count("`deadline_s`") == 2
    assert text.index("Between.") < text.rindex("`deadline_s`") < text.index("End.")


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
            assert (page.parent / link).exists(), (
                f"{page.name} links to {link}, which does not exist"
            )


def test_the_figures_of_benchmarks_follow_the_results() -> None:
    assert draw_throughput.draw() == draw_throughput.FIGURE.read_text("utf-8")
    assert draw_fair_start.draw() == draw_fair_start.FIGURE.read_text("utf-8")


def test_the_readme_has_at_most_200_lines() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 200


def test_the_list_for_language_models_has_every_page_of_the_documentation() -> None:
    text = (ROOT / "docs/llms.txt").read_text("utf-8")
    listed = re.findall(r"\]\((.+\.md)\)", text)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    documented = {page for page in pages if not page.startswith("contributing/")}
    assert set(listed) == documented | {"../SKILL.md"}
    assert len(listed) == len(set(listed))


def test_the_site_has_the_markdown_of_the_pages_in_the_list(tmp_path: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        (tmp_path / page.relative_to(ROOT / "docs")).parent.mkdir(parents=True, exist_ok=True)
    docs_site.on_post_build(SimpleNamespace(site_dir=tmp_path))
    torch_page = (tmp_path / "guides/frameworks/torch.md").read_text("utf-8")
    assert torch_page.startswith("# PyTorch")
    assert "](../../examples/train_torch.md)" in torch_page, "links lead to pages of the site"
    assert "](SKILL.md)" in (tmp_path / "llms.txt").read_text("utf-8")
    assert (tmp_path / "SKILL.md").is_file()


def test_the_skill_for_agents_is_short_and_has_a_name_and_a_description() -> None:
    text = (ROOT / "SKILL.md").read_text("utf-8")
    assert len(text.splitlines()) <= 120
    found = re.match(r"---\nname: ([a-z-]+)\ndescription: (.+)\n---\n", text)
    assert found is not None
    assert found[1] == "cloudload"
    assert len(found[2]) <= 1024
