"""The code blocks of the README and of the documentation run, page by page.

```python    is executed; the blocks of a page share one namespace
```py        needs a framework or a cluster, so only its imports and options are checked
```sh        cloudload's commands run; in other commands, targets, extras, modules and flags exist
```text      after a `python` block: part of what that block prints
```yaml      a file that other blocks may read; the comment in its first line is its name
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloudload
from cloudload import CloudLoader
from cloudload.cli import main
from testkit import ROOT
from testkit.corpora import random_documents
from testkit.foreign_datasets import (
    write_litdata_tokens,
    write_megatron,
    write_webdataset,
    write_webdataset_ids,
)
from tests.test_layout import ROOMS

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SKILL.md")),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LOADER = 'CloudLoader("s3://my-bucket/corpus", tokenizer="gpt2", seq_len=128, batch_size=8)'
KEEP = ["--keep", "source"]
SHELL = {"sh", "bash", "console"}
FASTER = {
    "convert": ["--processes", "1"],
    "count": ["--processes", "1"],
    "select": ["--processes", "1"],
    "plan": ["--no-measure"],
    "bench": ["--seconds", "0.1"],
}
"""For each command, options that save time. Other tests run it without them."""


OUTPUT = "output"


@cache
def blocks_of(page: str) -> tuple[tuple[str, str], ...]:
    """List (language, code) of the fenced blocks of a page. For a `text` block right after a
    `python` block, the language is `OUTPUT`."""
    text, last_end = (ROOT / page).read_text("utf-8"), 0
    found: list[tuple[str, str]] = []
    for block in BLOCK.finditer(text):
        language, code = block.groups()
        is_next = not text[last_end : block.start()].strip()
        if is_next and language == "text" and found and found[-1][0] == "python":
            language = OUTPUT
        found.append((language, code))
        last_end = block.end()
    return tuple(found)


def pages_with(*languages: str) -> list[str]:
    return [page for page in PAGES if {each for each, _ in blocks_of(page)} & set(languages)]


@pytest.fixture(scope="module")
def desk(request: pytest.FixtureRequest, tokenizer_folder: Path) -> Desk:
    """The data that the documentation assumes: two corpora in a bucket, and their raw files."""
    request.getfixturevalue("s3_server")
    tmp_path_factory = request.getfixturevalue("tmp_path_factory")
    return Desk(tmp_path_factory.mktemp("desk"), os.fspath(tokenizer_folder))


class Desk:
    """The folder, bucket, and tokenizer that replace those in the documentation's blocks."""

    def __init__(self, folder: Path, tokenizer: str) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.bucket = f"s3://cloudload/{folder.name}-{os.getpid()}"
        lines = [
            json.dumps({"text": each, "source": "a test"}) for each in random_documents(0, 300)
        ]
        for name, records, options in (("corpus", lines, []), ("books", lines[:50], KEEP)):
            (folder / name).mkdir()
            (folder / name / "part.jsonl").write_text("\n".join(records))
            convert = ["cloudload", "convert", f"{name}/", f"{self.bucket}/{name}", *options]
            run_command(convert, folder)

    def fill_in(self, code: str) -> str:
        """Replace the bucket and the tokenizer in a block with those of this test."""
        code = code.replace("s3://my-bucket", self.bucket).replace("s3://my-other", self.bucket)
        code = code.replace("--tokenizer gpt2", f"--tokenizer {self.tokenizer}")
        return code.replace('"gpt2"', repr(self.tokenizer))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # raised by Lightning
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # raised by DCP in one process
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # raised by torchdata
@pytest.mark.parametrize("page", pages_with("python"))
def test_the_python_and_cloudload_blocks_of_a_page_run(
    page: str,
    desk: Desk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in ("corpus", "books"):
        (tmp_path / name).symlink_to(desk.folder / name)
    (tmp_path / "table.csv").write_text('text,source,year\n"one\ntwo",a test,2024\n')
    write_files(page, desk, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDLOAD_CACHE", str(desk.folder / "cache"))
    if page not in ("README.md", "docs/quickstart.md"):
        # only the beginner's pages run unchanged; on other pages, worker processes would only add
        # time
        defaults = CloudLoader.__init__.__kwdefaults__ or {}
        monkeypatch.setitem(defaults, "num_workers", 0)
    names = read_names(page, desk)
    printed = ""
    try:
        for language, block in blocks_of(page):
            if language == "python":
                exec(compile(desk.fill_in(block), page, "exec"), names)
                printed = capfd.readouterr().out
            elif language == "sh":
                for command in commands_of(desk.fill_in(block)):
                    if command[0] == "cloudload":
                        run_command(command, tmp_path)
            elif language == OUTPUT:
                assert block in printed
        if page in RESULTS:
            RESULTS[page](names)
    finally:
        for value in names.values():
            if isinstance(value, CloudLoader):
                value.close()


def check_resumed(names: dict[str, Any]) -> None:
    """Check that a page saved its checkpoint at step 4 and resumed with the fifth batch."""
    assert names["checkpoint"]["step"] == 4
    assert names["batch"].rows.tolist() == list(range(32, 40))


def check_converted(names: dict[str, Any]) -> None:
    """Check that a page converted all 300 documents of the corpus."""
    assert names["report"].documents == 300


def check_documents(prefix: str, dtype: str) -> Callable[[dict[str, Any]], None]:
    """Make a check that a page's `read_documents` reads the documents that another library wrote,
    and that the page's loader delivers their tokens."""

    def check(names: dict[str, Any]) -> None:
        found = [np.frombuffer(each["tokens"], dtype) for each in names["read_documents"](prefix)]
        assert [each.tolist() for each in found] == DOCUMENTS
        options: dict[str, Any] = {"tokens_key": "tokens", "tokens_dtype": dtype, "seq_len": 16}
        loader = CloudLoader(
            names["out"], **options, batch_size=1, shuffle=False, epochs=1, num_lanes=1
        )
        with loader:
            delivered = [
                int(each) for batch in loader for each in batch["input_ids"][batch["labels"] >= 0]
            ]
        assert delivered == [*chain.from_iterable(DOCUMENTS)]

    return check


DOCUMENTS = [[*range(number, 3 * number + 1)] for number in range(1, 60)]
"""The token IDs of documents in the format of another library."""


def write_archives(folder: Path) -> None:
    (folder / "shards").mkdir()
    for number, part in enumerate(random_documents(number, 150) for number in range(2)):
        write_webdataset(folder / f"shards/web-{number:06d}.tar", part)
    write_webdataset_ids(folder / "ids-000000.tar", DOCUMENTS)


FILES: dict[str, Callable[[Path], None]] = {
    "docs/guides/from-litdata.md": lambda folder: write_litdata_tokens(
        folder / "tokens", DOCUMENTS
    ),
    "docs/guides/from-megatron.md": lambda folder: write_megatron(
        folder / "corpus_text_document", DOCUMENTS, sequences=3
    ),
    "docs/guides/from-webdataset.md": write_archives,
}
"""For each page about another library: a function that writes its files."""


RESULTS = {
    "README.md": check_resumed,
    "docs/quickstart.md": check_resumed,
    "docs/guides/converter.md": check_converted,
    "docs/guides/from-litdata.md": check_documents("tokens", "int64"),
    "docs/guides/from-megatron.md": check_documents("corpus_text_document", "uint16"),
    "docs/guides/from-webdataset.md": check_documents("ids-000000.tar", "int32"),
}


def write_files(page: str, desk: Desk, folder: Path) -> None:
    if page in FILES:
        FILES[page](folder)
    for language, block in blocks_of(page):
        if language == "yaml":
            (folder / block.splitlines()[0].removeprefix("# ")).write_text(desk.fill_in(block))


def read_names(page: str, desk: Desk) -> dict[str, Any]:
    """Make the variables that a page may use, such as a loader, a model, and an optimizer."""
    from torch.optim import SGD

    from tests.frameworks.small import Model

    model = Model()
    names: dict[str, Any] = {
        "CloudLoader": CloudLoader,
        "loader": eval(desk.fill_in(LOADER), {"CloudLoader": CloudLoader}),
        "model": model,
        "optimizer": SGD(model.parameters(), lr=0.1),
    }
    if page.endswith("lightning.md"):
        from tests.frameworks.lightning_fits import Module

        names["lightning_module"] = Module()
    return names


def commands_of(block: str) -> list[list[str]]:
    """Split a shell block into commands, each a list of words without comments."""
    lines = block.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_command(command: list[str], folder: Path) -> None:
    """Run a cloudload command in a folder."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        assert main([*command[1:], "--quiet", *FASTER.get(command[1], [])]) == 0, command
    finally:
        os.chdir(here)


# ---------------------------------------------------------------- blocks that cannot run here


@pytest.mark.parametrize("page", pages_with("py"))
def test_the_other_python_blocks_name_only_what_exists(page: str) -> None:
    for language, block in blocks_of(page):
        if language == "py":
            check_names(ast.parse(block))


def check_names(tree: ast.Module) -> None:
    """Check that imports from cloudload, and arguments of its functions and classes, exist."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("cloudload"):
            assert {each.name for each in node.names} <= names_in(f"{node.module}"), ast.unparse(
                node
            )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            function = getattr(cloudload, node.func.id, None)
            given = {each.arg for each in node.keywords if each.arg}
            if function is not None:
                assert given <= list_arguments(function), ast.unparse(node)
        if isinstance(node, ast.keyword) and node.arg == "options":
            options = ast.literal_eval(node.value)
            assert options.keys() <= inspect.signature(CloudLoader).parameters.keys()


def list_arguments(function: Any) -> set[str]:
    """List the names of a function's arguments. `options` stands for those of a loader."""
    names = set(inspect.signature(function).parameters)
    return names | set(inspect.signature(CloudLoader).parameters) if "options" in names else names


def names_in(module: str) -> set[str]:
    """Return the names that a module defines, even if its framework is not installed."""
    spec = find_spec(module)
    assert spec is not None, f"the module {module} does not exist"
    assert spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text("utf-8")).body
    if module == "cloudload":
        return set(cloudload.__all__)
    # a door, and a package that imports names lazily, also import them under `if TYPE_CHECKING`
    doors = [each for node in body if isinstance(node, ast.If) for each in node.body]
    exported = {
        each.asname or (each.name if node in doors else None)
        for node in [*body, *doors]
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    body += doors
    defined = {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return defined | {name for name in exported if name}


@pytest.mark.parametrize("page", pages_with(*SHELL))
def test_the_shell_blocks_name_only_what_exists(page: str) -> None:
    for language, block in blocks_of(page):
        if language in SHELL:
            for command in commands_of(block):
                CHECKS[command[0]](command[1:])


def check_make(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {word for word in words if "=" not in word}
    assert asked <= targets, f"the Makefile has no targets {sorted(asked - targets)}"


def check_pip(words: list[str]) -> None:
    assert words[0] == "install", words
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    section = project.split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = set(re.findall(r"^([a-z]+) = ", section, re.MULTILINE))
    for extra in re.findall(r"\[([\w,]+)\]", " ".join(words)):
        assert set(extra.split(",")) <= extras


def check_example(words: list[str]) -> None:
    """Check that a command names a script in `examples/`, and only flags that the script has."""
    (script,) = [word for word in words if word.startswith("examples/")]
    assert (ROOT / script).is_file()
    flags = {word for word in words[words.index(script) :] if word.startswith("--")}
    assert flags <= set(re.findall(r'"(--[a-z-]+)"', (ROOT / "examples/tiny_gpt.py").read_text()))


def check_python(words: list[str]) -> None:
    """Check that a `python` command names an existing module or a script in `examples/`."""
    if words[0] != "-m":
        check_example(words)
        return
    assert find_spec(words[1]) is not None


def check_cloudload(words: list[str]) -> None:
    """Only check the subcommand with `--help`; another test runs it on pages with Python blocks."""
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    assert stopped.value.code == 0


CHECKS = {
    "make": check_make,
    "pip": check_pip,
    "torchrun": check_example,
    "composer": check_example,
    "accelerate": check_example,
    "python": check_python,
    "cloudload": check_cloudload,
}


def test_every_block_has_a_language_that_a_test_knows() -> None:
    known = {"python", "py", "text", "yaml", "json", OUTPUT, *SHELL}
    unknown = {
        (page, language)
        for page in PAGES
        for language, _ in blocks_of(page)
        if language not in known
    }
    assert unknown == set()


def test_json_in_the_documentation_can_be_parsed() -> None:
    found = [body for page in PAGES for language, body in blocks_of(page) if language == "json"]
    assert [type(json.loads(body)) for body in found] == [dict] * len(found)
    assert found


def test_modules_named_in_the_documentation_exist() -> None:
    text = "\n".join((ROOT / page).read_text("utf-8") for page in PAGES)
    for module in sorted(set(re.findall(r"python -m ([\w.]+)", text))):
        assert find_spec(module) is not None, module
    for script in sorted(set(re.findall(r"`((?:scripts|tests|examples)/[\w./-]+)", text))):
        assert (ROOT / script).exists(), script


def test_names_of_the_package_in_the_documentation_exist() -> None:
    text = "\n".join((ROOT / page).read_text("utf-8") for page in PAGES)
    for name in sorted(set(re.findall(r"(?:`|^::: )(cloudload(?:\.\w+)+)", text, re.MULTILINE))):
        module, _, last = name.rpartition(".")
        assert last in names_in(module) or find_spec(name) is not None, name


@pytest.mark.parametrize("page", ["architecture", "extend", "ledger"])
def test_paths_and_modules_in_a_page_for_contributors_exist(page: str) -> None:
    text = (ROOT / f"docs/contributing/{page}.md").read_text("utf-8")
    paths = re.findall(r"`(\w[\w/]*/[\w/]*(?:\.\w+)?)`", text)
    modules = re.findall(rf"`((?:{'|'.join(ROOMS)})(?:\.\w+)+)`", text)
    assert paths or modules
    for path in paths:
        assert (ROOT / path).exists() or (ROOT / "cloudload" / path).exists(), path
    for module in modules:
        assert find_spec(f"cloudload.{module}") is not None, module


def test_the_members_of_modules_in_the_reference_exist() -> None:
    page = (ROOT / "docs/reference/api.md").read_text("utf-8")
    listed = re.findall(
        r"^::: (cloudload\.[a-z_.]+)\n    options:\n +members: \[(.+)\]", page, re.M
    )
    assert len(listed) > 5
    for module, members in listed:
        assert set(members.split(", ")) <= names_in(module), module
