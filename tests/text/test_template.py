"""Chat templates against transformers, and templates that misbehave."""

from __future__ import annotations

from pathlib import Path

import pytest

from pageinn.text.data import TokenizerData
from pageinn.text.template import ChatTemplate, TemplateError

USER = {"role": "user", "content": "What is <b>2+2</b>?"}
TALKS = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "4"}, USER],
]


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_what_transformers_renders(
    smollm2_path: Path, smollm2_data: TokenizerData, talk: list, prompt: bool
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    made = ChatTemplate.of(smollm2_data)
    assert made is not None
    expected, _ = render_jinja_template([talk], chat_template=smollm2_data.chat_template, add_generation_prompt=prompt)
    assert made.render(talk, prompt) == expected[0]


def test_whitespace_loop_controls_and_json_follow_transformers() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (
        "{%- for m in messages %}\n  {% if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "{{ m | tojson }}{{ bos_token }}\n{% generation %}x{% endgeneration %}{% endfor %}"
        "{{ tools is none }}{{ missing is defined }}"
    )
    talk = [{"role": "skip", "content": ""}, USER]
    expected, _ = render_jinja_template([talk], chat_template=source, bos_token="<s>")
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(talk, False) == expected[0]


def test_text_parts_are_joined_and_others_refused() -> None:
    made = ChatTemplate("{{ messages[0].content }}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert made.render([{"role": "user", "content": parts}]) == "ab"
    with pytest.raises(TemplateError, match=r"messages\[0\].content: part type 'image_url' is not supported"):
        made.render([{"role": "user", "content": [{"type": "image_url"}]}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must\n alternate') }}", "failed: roles must alternate"),
        ("{{ messages[3].content }}", "failed: .*no element 3"),
        ("{{ 1 / 0 }}", "failed: division by zero"),
        ("{{ 'x' + 1 }}", "failed"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ 'x' * 10**10 }}", "powers are not allowed"),
        ("{{ 'x' * 10000000000 }}", "more than"),
        ("{{ 10000000000 * [1] }}", "more than"),
        ("{% for i in range(10000000) %}x{% endfor %}", "range"),
        ("{% for i in range(40) %}{{ 'x' * 1000000 }}{% endfor %}", "more than"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_bad_templates_fail_in_one_line(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message) as caught:
        ChatTemplate(source).render([USER])
    assert "\n" not in str(caught.value)


def test_a_template_that_does_not_compile_is_refused() -> None:
    with pytest.raises(TemplateError, match="chat template is not valid: Unexpected end of template"):
        ChatTemplate("{% for m in messages %}")


def test_no_template(smollm2_data: TokenizerData) -> None:
    assert ChatTemplate.of(smollm2_data._replace(chat_template=None)) is None
