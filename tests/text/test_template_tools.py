"""Tools in the prompt, against transformers; a call sent back is the text that was answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pageinn.text.template import ChatTemplate, Written

QWEN3 = (Path(__file__).parents[1] / "data/chat_templates/Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
#: In the manner of Hermes: the call's object is written by tojson.
HERMES = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '\n<tool_call>\n{\"name\": ' }}{{ call.function.name | tojson }}"
    "{{ ', \"arguments\": ' }}{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{% endfor %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <now>, in °C.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"function": {"parameters": {}, "name": "time"}, "type": "function"},
]
ARGUMENTS = '{"city":"Zürich",  "days" : 2}'


def talk(arguments: object) -> list[dict]:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is it in Zürich?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12"},
    ]


@pytest.mark.parametrize(
    ("source", "arguments"), [(QWEN3, ARGUMENTS), (QWEN3, json.loads(ARGUMENTS)), (HERMES, json.loads(ARGUMENTS))]
)
def test_renders_what_transformers_renders(source: str, arguments: object) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template(
        [talk(arguments)], tools=TOOLS, chat_template=source, add_generation_prompt=True
    )
    assert ChatTemplate(source).render(talk(arguments), tools=TOOLS) == expected[0]


@pytest.mark.parametrize("source", [QWEN3, HERMES])
def test_arguments_come_back_to_the_letter(source: str) -> None:
    text = ChatTemplate(source).render(talk(Written(json.loads(ARGUMENTS), ARGUMENTS)), tools=TOOLS)
    assert '\n<tool_call>\n{"name": "weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>" in text


def test_what_a_template_has_a_place_for() -> None:
    for source, tools, calls in (
        (QWEN3, True, True),
        (HERMES, True, True),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False, False),
        ("{# tools, tool_calls #}{% set tools = 3 %}{{ messages }} tools", False, False),
        ("{{ messages[0]['tool_calls'] }}", False, True),
        ("{%- if not tools is defined %}{%- set tools = none %}{%- endif %}", True, False),
    ):
        made = ChatTemplate(source)
        assert (made.takes_tools, made.takes_tool_calls) == (tools, calls), source
