"""Generate parts of the documentation, with hooks of MkDocs and an extension of mkdocstrings.

<!-- generated: options Stream -->      becomes a table of the options of a config
<!-- generated: cli -->                 becomes `--help` of every command
<!-- generated: checks -->              becomes the kinds of findings of `cloudload check`
<!-- generated: errors -->              becomes the errors and the kinds of storage failures
<!-- generated: docstring MODULE -->    becomes the list in a module's docstring, as a table
<!-- generated: pages -->               becomes the pages of the site, each with its sections
../../benchmarks/RESULTS.md             a link to a file outside docs/ leads to a page of the site
![...](figures/lanes.svg)               a figure is drawn into the page, in the colors of its theme

The pages in the repository contain the generated text, from its marker to `<!-- end -->`, so that
it can also be read there. The site also has the Markdown of each page that docs/llms.txt lists.

    python -m scripts.docs_site            write the generated text again
    python -m scripts.docs_site --check    fail if the generated text is out of date
"""

from __future__ import annotations

import importlib
import inspect
import os
import posixpath
import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]

_MARKER = re.compile(
    r"^(<!-- generated: (\w+) ?([\w.]*) -->)$(?:(?:(?!<!-- generated).)*?^<!-- end -->$)?",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"(\]\()(\.\.?/[^)#\s]+|[\w][\w./-]*\.(?:md|py|png|svg|txt))(#[^)\s]*)?(\))")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r'<p><img alt="([^"]*)" src="([^"]*figures/([\w-]+)\.svg)" ?/?></p>')


# ---------------------------------------------------------------- pages outside docs/


def on_files(files: Any, config: Any) -> Any:
    """Add pages to the site for files outside docs/. MkDocs calls this hook."""
    from mkdocs.structure.files import File, InclusionLevel

    for path in [
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "SKILL.md",
        *_list("benchmarks", "*.md"),
    ]:
        text = (ROOT / path).read_text("utf-8")
        is_table = path.startswith("benchmarks/")  # tables are wide, so hide the table of contents
        content = f"---\nhide: [toc]\n---\n\n{text}" if is_table else text
        files.append(File.generated(config, path, content=content))
    for path in _list("benchmarks", "*.png"):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for path in _list("examples", "*.py"):
        name, code = Path(path).name, (ROOT / path).read_text("utf-8")
        # without a table of contents, the column has room for lines of 100 characters
        page = f"---\nhide: [toc]\nsearch:\n  exclude: true\n---\n\n# {name}\n\n```py\n{code}```\n"
        # the guides link to the page, so it needs no entry in the navigation
        inclusion = InclusionLevel.NOT_IN_NAV
        uri = site_path(path)
        files.append(File.generated(config, uri, content=page, inclusion=inclusion))
    return files


def _list(folder: str, pattern: str) -> list[str]:
    paths = sorted((ROOT / folder).glob(pattern))
    return [path.relative_to(ROOT).as_posix() for path in paths if path.name != "__init__.py"]


def site_path(path: str) -> str:
    """Return the site path of a file of the repository.

    `docs/` is the root of the site, and a code file has a page that ends in `.md`.
    """
    return re.sub(r"\.py$", ".md", path.removeprefix("docs/"))


def rewrite_links(markdown: str, source: str) -> str:
    """Rewrite a page's links for the site. `source` is the page's path in the repository."""
    here, page = posixpath.dirname(source), site_path(source)

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[2]))
        if not (ROOT / target).is_file():
            return link[0]
        relative = posixpath.relpath(site_path(target), posixpath.dirname(page) or ".")
        return f"{link[1]}{relative}{link[3] or ''}{link[4]}"

    return _LINK.sub(rewrite, markdown)


# ---------------------------------------------------------------- generated text


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill a page's markers, and rewrite its links for the site. MkDocs calls this hook."""
    uri = page.file.src_uri
    source = f"docs/{uri}" if (ROOT / "docs" / uri).is_file() else uri
    return rewrite_links(fill_markers(markdown), source)


def fill_markers(markdown: str) -> str:
    """Return a page with new text after each `<!-- generated: … -->`."""

    def fill(marker: re.Match[str]) -> str:
        return f"{marker[1]}\n\n{_GENERATORS[marker[2]](marker[3])}\n\n<!-- end -->"

    return _MARKER.sub(fill, markdown)


def list_outdated() -> dict[Path, str]:
    """Return the new text of each page in the repository whose generated parts are outdated."""
    paths = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / "docs").glob("llms.txt")]
    pages = {path: path.read_text("utf-8") for path in paths}
    filled = {path: fill_markers(text) for path, text in pages.items()}
    return {path: text for path, text in filled.items() if text != pages[path]}


def main(arguments: Sequence[str]) -> int:
    """Rewrite the outdated pages. With `--check`, list them instead, and return 1 if any exist."""
    outdated = list_outdated()
    if "--check" not in arguments:
        for path, text in outdated.items():
            path.write_text(text, "utf-8")
        return 0
    for path in outdated:
        print(
            f"{path} is out of date. To rewrite it, run python -m scripts.docs_site",
            file=sys.stderr,
        )
    return 1 if outdated else 0


def options_table(name: str) -> str:
    """Return the table of a config's options, or of the options that only `CloudLoader` has."""
    from cloudload.config.chat import Chat
    from cloudload.config.delivery import DeliveryConfig
    from cloudload.config.fim import Fim
    from cloudload.config.rows import RowsConfig
    from cloudload.config.stream import Stream
    from cloudload.data.storage.base import Retry
    from cloudload.loader import CloudLoader
    from cloudload.system.option_help import argument_docs, field_docs

    configs = {
        each.__name__: each for each in (RowsConfig, DeliveryConfig, Stream, Chat, Fim, Retry)
    }
    parameters = inspect.signature(CloudLoader.__init__).parameters
    if name == "CloudLoader":
        explained = {
            option.name for half in (RowsConfig, DeliveryConfig) for option in fields(half)
        }
        own = [each for each in parameters if each not in {"self", *explained}]
        docs = argument_docs(CloudLoader)
        return _table(
            [_option_row(each, "", _show(parameters[each].default), docs[each], "") for each in own]
        )
    config = configs[name]
    is_shared = config in (RowsConfig, DeliveryConfig)
    types_, docs = typing.get_type_hints(config), field_docs(config)
    shown = [each for each in fields(config) if not is_shared or each.name in parameters]
    prefix = "" if is_shared else f"{name.lower()}-"
    return _table(
        [
            _option_row(
                each.name,
                _show_type(types_[each.name]),
                _show_default(each),
                docs[each.name],
                prefix,
            )
            for each in shown
        ]
    )


def _table(rows: list[str]) -> str:
    table = ["| option | |", "|---|---|", *rows]
    return "\n".join(['<div class="options" markdown>', "", *table, "", "</div>"])


def _option_row(name: str, type_: str, default: str, text: str, prefix: str) -> str:
    is_explained = default == "`None`" and re.search(r"By default|None is|None keeps", text)
    shown = default if default == "required" else f"default {default}"
    facts = ", ".join(filter(None, [type_, "" if is_explained else shown]))
    text = text[0].upper() + text[1:]
    return f'| `{name}`<a id="{prefix}{name}"></a> | {text} <small>{facts}</small> |'


def _show_default(option: Field[Any]) -> str:
    if option.default_factory is not MISSING:
        return f"`{type(option.default_factory()).__name__}()`"
    return _show(option.default)


def _show(default: Any) -> str:
    if default in (MISSING, inspect.Parameter.empty):
        return "required"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default!r}`"


def _show_type(hint: Any) -> str:
    """Describe a type in words for the options tables, such as `integer`, `path` or `function`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if origin in (typing.Union, types.UnionType):
        shown = [_show_type(each) for each in arguments if each is not type(None)]
        return " or ".join(dict.fromkeys(shown))
    if origin is Callable or hint is Callable:
        return "function"
    if inspect.isclass(origin) and origin not in (list, tuple):
        return "path" if origin.__name__ == "PathLike" else _SEQUENCES.get(origin.__name__, "")
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


_SEQUENCES = {"Sequence": "list"}
_NAMES = {str: "text", int: "integer", float: "number", bool: "`True` or `False`"}


def cli_help(_: str = "") -> str:
    """Return `--help` of the program and of each command, for a terminal of 80 columns."""
    from unittest import mock

    from cloudload.tools.cli import make_parser

    with mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}):
        parser = make_parser()
        (commands,) = [
            each for each in parser._actions if each.choices and each.dest == "==SUPPRESS=="
        ]
        parsers = {"cloudload": parser}
        parsers |= {
            f"cloudload {name}": each for name, each in dict(commands.choices or {}).items()
        }
        return "\n\n".join(
            f"## {name}\n\n```text\n{each.format_help().rstrip()}\n```"
            for name, each in parsers.items()
        )


def checks_table(_: str = "") -> str:
    """Return a table of the kinds of findings of `cloudload check`."""
    from cloudload.tools.check.rules import RULES

    rows = [
        f"| `{kind}` | {rule.severity} | {', '.join(rule.readers)} | {rule.meaning} |"
        for kind, rule in RULES.items()
    ]
    return "\n".join(["| kind | severity | affects | |", "|---|---|---|---|", *rows])


def errors_reference(_: str = "") -> str:
    """Return the tree of errors, the docstring of each, and the kinds of storage failures."""
    from cloudload import errors
    from cloudload.system.option_help import _parse_module

    tree = inspect.cleandoc(inspect.cleandoc(f"{errors.__doc__}").split("\n\n")[1])
    names = "\n".join(line.split("  ")[0] for line in tree.splitlines())
    parts = [f"```text\n{names}\n```"]
    for error in vars(errors).values():
        if inspect.isclass(error) and issubclass(error, errors.CloudloadError):
            text = " ".join(inspect.cleandoc(f"{error.__doc__}").split())
            parts.append(f"## `{error.__name__}`\n\n{text}")
            if error is errors.StoreError:
                parts.append(
                    "`error.kind` is a `FailureKind`, and `error.is_missing` says whether the "
                    "object or its bucket does not exist."
                )
    parts.append(
        "## `FailureKind`\n\nThe kind of failure of a store. `kind.is_missing` and "
        "`kind.is_transient` tell which group a kind belongs to."
    )
    docs = _enum_docs(_parse_module(errors.__name__), "FailureKind")
    rows = [f"| `{kind.name}` | {docs[kind.name]} |" for kind in errors.FailureKind]
    parts.append("\n".join(["| kind | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _enum_docs(module: list[Any], name: str) -> dict[str, str]:
    import ast

    found = {}
    for cls in module:
        if isinstance(cls, ast.ClassDef) and cls.name == name:
            for member, text in zip(cls.body, cls.body[1:], strict=False):
                if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
                    found[ast.unparse(member.targets[0])] = ast.literal_eval(text.value)
    return found


def module_docstring(name: str) -> str:
    """Convert the list in a module's docstring to a table.

    Each line of the list has a term, two or more spaces, and the meaning.
    """
    text = inspect.cleandoc(f"{importlib.import_module(name).__doc__}")
    listing = next(part for part in text.split("\n\n") if part.startswith("    "))
    rows: list[list[str]] = []
    for line in inspect.cleandoc(listing).splitlines():
        if line.startswith(" "):
            rows[-1][-1] += f" {line.strip()}"
        else:
            rows.append(re.split(r"  +", line))
    for row in rows:
        row[0] = ", ".join(f"`{word}`" if word != "…" else word for word in row[0].split(", "))
        row[1:-1] = [f"`{example}`" for example in row[1:-1]]
    width = len(rows[0])
    head = [f"| field |{' example |' * (width - 2)} meaning |", f"|{'---|' * width}"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])


def pages_list(_: str = "") -> str:
    """Return the pages of `docs/`, by the sections of the navigation, for `llms.txt`."""
    import yaml

    nav: list[Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    sections: dict[str, list[str]] = {"Start": []}
    for name, entry in (pair for each in nav for pair in each.items()):
        paths = [entry] if isinstance(entry, str) else list(map(_path_of, entry))
        lines = [_describe_page(path) for path in paths if (ROOT / "docs" / path).is_file()]
        if name != "Contributing":
            sections.setdefault(name if isinstance(entry, list) else "Start", []).extend(lines)
    return "\n\n".join("\n".join([f"## {name}", "", *each]) for name, each in sections.items())


def _path_of(entry: str | dict[str, str]) -> str:
    return entry if isinstance(entry, str) else next(iter(entry.values()))


def _describe_page(path: str) -> str:
    """Return a link to a page, with the titles of its sections."""
    text = (ROOT / "docs" / path).read_text("utf-8")
    titles = re.findall(r"^##? (.+?)(?: \{.*)?$", _FENCED.sub("", text), re.MULTILINE)
    sections = "; ".join(titles[1:])
    return f"- [{titles[0]}]({path})" + (f": {sections}" if sections else "")


def on_post_build(config: Any) -> None:
    """Write llms.txt and the Markdown of its pages to the site. MkDocs calls this hook."""
    listing = (ROOT / "docs/llms.txt").read_text("utf-8")
    for link in ["llms.txt", *re.findall(r"\]\((.+\.md)\)", listing)]:
        source = posixpath.normpath(f"docs/{link}")
        text = rewrite_links((ROOT / source).read_text("utf-8"), source)
        Path(config.site_dir, site_path(source)).write_text(text, "utf-8")


_GENERATORS: dict[str, Callable[[str], str]] = {
    "pages": pages_list,
    "options": options_table,
    "checks": checks_table,
    "cli": cli_help,
    "errors": errors_reference,
    "docstring": module_docstring,
}


# ---------------------------------------------------------------- figures


def on_page_content(text: str, **_: Any) -> str:
    """Replace each figure's `<img>` with its SVG, so that the figure follows the page's theme."""

    def inline(image: re.Match[str]) -> str:
        svg = (ROOT / "docs/figures" / f"{image[3]}.svg").read_text("utf-8")
        label = f' role="img" aria-label="{image[1]}"'
        return f"<figure>{svg.replace('<svg', f'<svg{label}', 1)}</figure>"

    return _FIGURE.sub(inline, text)


class RuntimeDocstrings(griffe.Extension):
    """A griffe extension that shows `CloudLoader.__doc__`, to which the code adds the options."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.name == "CloudLoader" and cls.docstring is not None:
            from cloudload import CloudLoader

            text = inspect.cleandoc(f"{CloudLoader.__doc__}")
            # remove the defaults, because the page shows them in the signature
            cls.docstring.value = re.sub(r"\s+Default:\s+`[^`]*`\.", "", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
