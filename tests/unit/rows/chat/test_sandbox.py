"""Templates run as in transformers, but without today's date."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cloudload.rows.chat.conversation import ChatError
from cloudload.rows.chat.sandbox import CompiledTemplate

MESSAGES = [{"role": "user", "content": "<b>\u00f6</b>"}, {"role": "assistant", "content": "x"}]


def compile_text(text: str, date: str | None = None) -> CompiledTemplate:
    return CompiledTemplate(text, "test", {"bos_token": "<s>"}, date)


@pytest.mark.parametrize(
    "text",
    [
        "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}",
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}",
        "{{ messages[0] | tojson(ensure_ascii=True, sort_keys=True, separators=(',', ':')) }}",
        "{% for m in messages %}\n {% if loop.last %}{% break %}{% endif %}\n{{ m }}{% endfor %}",
        "{{ add_generation_prompt }}{{ extra }}{{ extra.missing is defined }}",
        "a{% generation %}b{% endgeneration %}c",
    ],
)
def test_text_is_that_of_transformers(text: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    [expected], _ = render_jinja_template(
        [MESSAGES], chat_template=text, bos_token="<s>", extra={"a": 1}
    )
    assert compile_text(text).render(MESSAGES, None, {"extra": {"a": 1}}) == expected


def test_blocks_have_the_ranges_of_their_text() -> None:
    text = (
        "{% generation %}ab{% endgeneration %}{% for m in messages %}{% generation %}"
        "{{ m.role }}{% endgeneration %}, {% endfor %}{% generation %}{% endgeneration %}"
    )
    written, blocks = compile_text(text).render_blocks(MESSAGES)
    assert written == "abuser, assistant, "
    assert [written[start:stop] for start, stop in blocks] == ["ab", "user", "assistant"]


def test_a_block_in_a_macro_is_refused() -> None:
    text = "{% macro f() %}xy{% generation %}z{% endgeneration %}{% endmacro %}ab{{ f() }}"
    with pytest.raises(
        ChatError, match=r"template test moves the text of a .% generation %. block"
    ):
        compile_text(text).render(MESSAGES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ raise_exception('Roles must alternate!') }}", "template test refuses .*: Roles must"),
        ("{{ messages[0].content + 1 }}", "refuses the conversation: TypeError: can only conc"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{{ messages.__class__.__mro__ }}", "access to attribute '__class__' .* is unsafe"),
        ("{{ strftime_now('%Y') }}", r"writes today's date.*Pass Chat\(date='YYYY-MM-DD'\)"),
    ],
)
def test_an_error_of_a_template_has_its_own_words(text: str, words: str) -> None:
    with pytest.raises(ChatError, match=words):
        compile_text(text).render(MESSAGES)


def test_an_invalid_template_is_refused() -> None:
    with pytest.raises(ChatError, match=r"template test is not valid Jinja: .*\(line 2\)"):
        compile_text("\n{% for %}")


def test_the_date_is_the_given_one() -> None:
    text = "{{ strftime_now('%d %b %Y') }}"
    assert compile_text(text, "2026-01-31").render(MESSAGES) == "31 Jan 2026"


def test_a_template_is_compiled_without_today() -> None:
    text = "{% if strftime_now is defined %}yes{% endif %}"
    assert re.fullmatch("yes", compile_text(text).render(MESSAGES))


def test_the_rows_arguments_override_tokens() -> None:
    kwargs: dict[str, Any] = {"bos_token": "<b>"}
    assert compile_text("{{ bos_token }}").render(MESSAGES, None, kwargs) == "<b>"
