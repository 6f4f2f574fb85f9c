"""A tokenizer adds the same bos and eos however it is passed, and the log names their sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from cloudload.rows.tokenization.tokenizer import TokenizerSpec, load_tokenizer

DEEPSEEK_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"
TOKENS = ["<s>", "</s>", "<|endoftext|>", "<|return|>", "<|im_end|>", "<end_of_turn>", DEEPSEEK_END]
S, END, ENDOFTEXT, RETURN, IM_END, TURN, DEEPSEEK = range(1, 8)


def write_files(
    folder: Path, config: Mapping[str, Any], template: str | None = None, tokens: Any = TOKENS
) -> Path:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(tokens))
    if template is not None:
        names = [name for name in tokens if name in template]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text("{}")  # transformers 5 also reads this file
    return folder


FRAMINGS: dict[str, tuple[dict[str, Any], str | None, tuple[int | None, int]]] = {
    "like gpt2": (
        {"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>"},
        None,
        (None, END),
    ),
    "like deepseek_v3": (
        {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"},
        None,
        (S, END),
    ),
    "like llama3": ({"bos_token": "<s>", "eos_token": "</s>"}, "<s> $A", (S, END)),
    "like llama2": (
        {"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>"},
        "<s> $A",
        (S, END),
    ),
    "template and config differ": (
        {"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>"},
        "<s> $A",
        (None, END),
    ),
    "token objects": (
        {
            "add_bos_token": True,
            "bos_token": {"content": "<s>", "__type": "AddedToken"},
            "eos_token": "</s>",
        },
        None,
        (S, END),
    ),
    "like gptoss": ({"eos_token": "<|return|>"}, None, (None, RETURN)),
}


@pytest.mark.parametrize("name", FRAMINGS)
def test_a_name_a_folder_a_file_and_an_object_frame_documents_alike(
    name: str, hub_snapshot: Path
) -> None:
    import transformers

    config, template, expected = FRAMINGS[name]
    write_files(hub_snapshot, config, template)
    passed: list[Any] = ["some/model", hub_snapshot, hub_snapshot / "tokenizer.json"]
    if transformers.__version__.startswith("4."):
        # transformers 5 may build an object that frames documents differently (docs/limits.md)
        passed.append(transformers.AutoTokenizer.from_pretrained(hub_snapshot))
    assert [load_tokenizer(each).frames for each in passed] == [(expected,)] * len(passed)


@pytest.mark.parametrize(
    ("token", "advice"),
    [
        ("<|return|>", "such as eos='<|endoftext|>'"),
        ("<|im_end|>", "such as eos='<|endoftext|>'"),
        ("<end_of_turn>", "such as eos='<|endoftext|>'"),
    ],
)
def test_an_end_token_of_a_chat_is_doubted_once_and_only_if_nobody_asked_for_it(
    token: str, advice: str, tmp_path: Path
) -> None:
    write_files(tmp_path, {"eos_token": token})
    warning = str(load_tokenizer(tmp_path).framing_warning)
    assert warning.startswith(f"documents end with {token!r} (eos_token of tokenizer_config.json)")
    assert advice in warning
    assert load_tokenizer(tmp_path, [(None, token)]).framing_warning is None
    assert load_tokenizer(tmp_path, [(None, "<|endoftext|>")]).frames == ((None, ENDOFTEXT),)


@pytest.mark.parametrize("token", ["</s>", "<|endoftext|>", DEEPSEEK_END])
def test_an_end_token_of_documents_is_not_doubted(token: str, tmp_path: Path) -> None:
    spec = load_tokenizer(write_files(tmp_path, {"eos_token": token}))
    assert spec.framing_warning is None


def test_the_end_of_a_turn_is_doubted_without_advice_if_the_tokenizer_has_no_other_end(
    tmp_path: Path,
) -> None:
    write_files(tmp_path, {"eos_token": "<|im_end|>"}, tokens=["<|im_end|>"])
    assert "such as" not in str(load_tokenizer(tmp_path).framing_warning)


def test_the_framing_names_each_token_and_its_file(tmp_path: Path) -> None:
    def framing(**config: Any) -> str:
        spec: TokenizerSpec = load_tokenizer(write_files(tmp_path, config, "<s> $A </s>"))
        return spec.framing

    template = "the template of tokenizer.json"
    place = "of tokenizer_config.json"
    assert framing() == f"bos '<s>' ({template}), eos '</s>' ({template})"
    assert framing(eos_token="<|endoftext|>", bos_token="<s>", add_bos_token=True) == (
        f"bos '<s>' (add_bos_token and bos_token {place}), eos '<|endoftext|>' (eos_token {place})"
    )
    assert framing(add_bos_token=False).startswith("no bos (add_bos_token is false)")
    given = load_tokenizer(tmp_path, [(None, "</s>"), ("<s>", None)]).framing
    assert given == "no bos, eos '</s>' (given) · bos '<s>' (given), no eos"
