"""Templates are found where tokenizers have them, with the tokens that they may write."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from cloudload.config import Chat
from cloudload.rows.chat.chat_template import ChatTemplate
from cloudload.rows.chat.conversation import ChatError
from cloudload.rows.chat.renderer import Renderer, load_template

SIMPLE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eot>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(WordLevel({"a": 0}, "a"))
    tokenizer.add_special_tokens(["<eot>", "<s>"])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


def write_folder(folder: Path, config: dict[str, Any] | None = None, **files: str) -> Path:
    """Write a tokenizer with its config, and more files, whose names have __ for a slash."""
    folder.mkdir(exist_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def load(folder: Path, **options: Any) -> ChatTemplate:
    return load_template(Chat(**options), folder)


def test_a_template_is_read_from_the_config_of_the_tokenizer(tmp_path: Path) -> None:
    token = {"content": "<s>", "special": True}
    config = {"chat_template": SIMPLE, "bos_token": token, "eos_token": "<eot>", "pad_token": None}
    template = load(write_folder(tmp_path / "model", config))
    assert (template.name, template.text, template.tool_text) == ("model", SIMPLE, SIMPLE)
    assert template.tokens == {"bos_token": "<s>", "eos_token": "<eot>"}
    assert template.special_names == ("<eot>", "<s>")
    assert template.added_names == ("<eot>", "<s>", "<think>")
    assert pickle.loads(pickle.dumps(template)) == template


def test_the_config_comes_before_the_map_of_tokens(tmp_path: Path) -> None:
    tokens = json.dumps({"bos_token": "<eot>", "eos_token": "<eot>"})
    config = {"chat_template": SIMPLE, "bos_token": "<s>"}
    folder = write_folder(tmp_path, config, special_tokens_map_DOT_json=tokens)
    assert load(folder).tokens == {"bos_token": "<s>", "eos_token": "<eot>"}


def test_a_file_of_its_own_comes_before_the_config(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"chat_template": "old"}, chat_template_DOT_jinja=SIMPLE)
    assert load(folder).text == SIMPLE


def test_a_processor_has_a_file_for_its_template(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path, {}, chat_template_DOT_json=json.dumps({"chat_template": SIMPLE})
    )
    assert load(folder).text == SIMPLE


@pytest.mark.parametrize("kind", ["list", "files"])
def test_rows_with_tools_use_the_template_for_tools(tmp_path: Path, kind: str) -> None:
    tools = "{{ tools | length }}" + SIMPLE
    if kind == "list":
        named = [{"name": "tool_use", "template": tools}, {"name": "default", "template": SIMPLE}]
        folder = write_folder(tmp_path, {"chat_template": named})
    else:
        files = {
            "chat_template_DOT_jinja": SIMPLE,
            "additional_chat_templates__tool_use_DOT_jinja": tools,
        }
        folder = write_folder(tmp_path, {}, **files)
    template = load(folder)
    assert (template.text, template.tool_text) == (SIMPLE, tools)
    sample = {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "tools": [{"name": "f"}],
    }
    assert Renderer(template).render(sample) == "1<user>a<eot><assistant>b<eot>"
    del sample["tools"]
    assert Renderer(template).render(sample) == "<user>a<eot><assistant>b<eot>"


@pytest.mark.parametrize("suffix", [".jinja", ".json", None])
def test_a_template_can_be_a_file_or_text(tmp_path: Path, suffix: str | None) -> None:
    folder = write_folder(tmp_path, {"chat_template": "old"})
    given = SIMPLE
    if suffix:
        path = tmp_path / f"mine{suffix}"
        path.write_text(SIMPLE if suffix == ".jinja" else json.dumps({"chat_template": SIMPLE}))
        given = str(path)
    template = load(folder, template=given)
    assert (template.text, template.name) == (SIMPLE, "mine" if suffix else "given as text")


def test_a_transformers_tokenizer_has_its_template_and_tokens() -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(), bos_token="<s>")
    tokenizer.chat_template = "{{ bos_token }}" + SIMPLE
    template = load_template(Chat(), tokenizer)
    assert template.text == "{{ bos_token }}" + SIMPLE
    assert template.tokens == {"bos_token": "<s>"}


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ({}, {}, "the tokenizer model has no chat template. Pass Chat.template=PATH"),
        ({}, {"template": "no.jinja"}, "is 'no.jinja', which is neither a file nor the text"),
        ({}, {"template": "{% if %}"}, "chat template given as text is not valid Jinja"),
        ({"chat_template": [{"name": "a"}]}, {}, "has no valid chat_template: 'template'"),
        (
            {"chat_template": [{"name": name, "template": SIMPLE} for name in "ab"]},
            {},
            "model has the chat templates a, b, and none is called 'default'",
        ),
    ],
)
def test_a_missing_template_is_named(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    folder = write_folder(tmp_path / "model", config)
    with pytest.raises(ChatError, match=words):
        load(folder, **options)


def test_a_token_that_nothing_names_is_missed() -> None:
    chat = Chat("{{ bos_token }}" + SIMPLE)
    with pytest.raises(ChatError, match=r"uses bos_token, but .*template_kwargs=\{'bos_token'"):
        load_template(chat, make_tokenizer())
    given = replace(chat, template_kwargs={"bos_token": "<s>"})
    assert load_template(given, make_tokenizer()).tokens == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            SIMPLE.replace("<assistant>", "<assistant>Well,"),
            "writes .*'<user>Ask<eot><assistant>A",
        ),
        (SIMPLE.replace("<eot>", "\n"), "ends turns with .*a model would not learn to stop"),
        (
            "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}",
            "marks all of its text as generated",
        ),
    ],
)
def test_a_template_that_does_not_show_turns_is_refused_when_it_is_loaded(
    text: str, words: str
) -> None:
    with pytest.raises(ChatError, match=words):
        load_template(Chat(text), make_tokenizer())
    assert load_template(Chat(text, train="all"), make_tokenizer()).text == text


def test_a_template_that_writes_the_date_is_refused_when_it_is_loaded() -> None:
    text = "{{ strftime_now('%Y') }}" + SIMPLE
    with pytest.raises(ChatError, match="writes today's date, so documents would differ"):
        load_template(Chat(text), make_tokenizer())
    assert load_template(Chat(text, date="2026-01-31"), make_tokenizer()).text == text


def test_whatever_changes_documents_changes_the_identity(tmp_path: Path) -> None:
    config = {"chat_template": SIMPLE, "bos_token": "<s>"}
    first = load(write_folder(tmp_path / "model", config))
    assert first.identity.startswith("tokenizer#")
    assert len(first.identity) == len("tokenizer#") + 12
    assert load(write_folder(tmp_path / "moved", config)).identity == first.identity
    others = [
        load(tmp_path / "model", train="last"),
        load(tmp_path / "model", template_kwargs={"x": 1}),
        load(tmp_path / "model", template=SIMPLE + "{# #}"),
        load(write_folder(tmp_path / "model", config | {"bos_token": "<eot>"})),
    ]
    identities = {each.identity.partition("#")[2] for each in [first, *others]}
    assert len(identities) == 5
    same = load(write_folder(tmp_path / "model", config), template=SIMPLE)
    assert same.identity.partition("#")[2] == first.identity.partition("#")[2]
