"""The parts of a prompt by name, from the marks of real templates; their dates; the differences of two prompts."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

import pytest
from explaining import Explain
from faulty_logs import DATA, conversation, instructions, text_log, tools

from pageinn.explain.culprit import culprit
from pageinn.explain.kinds import Kind
from pageinn.explain.parts import Part, Piece, pieces_of_chat, pieces_of_text
from pageinn.text.template import ChatTemplate
from pageinn.traffic import Chat

TEMPLATES = ["Qwen-Qwen3-0.6B", "openai-gpt-oss-120b", "ibm-granite-granite-3.3-2B-Instruct"]


def rendered(name: str, chat: Chat, day: int = 14) -> str:
    template = ChatTemplate((DATA / "chat_templates" / f"{name}.jinja").read_text())
    when = datetime(2026, 3, day, tzinfo=UTC)
    return template.render(chat.messages, tools=chat.tools, variables={"strftime_now": when.strftime})


def named(pieces: list[Piece]) -> dict[str, str]:
    """Each part's text."""
    found: dict[str, str] = {}
    for piece in pieces:
        if piece.part.kind != "template":
            found[str(piece.part)] = found.get(str(piece.part), "") + piece.text
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_parts_are_found_in_what_a_real_template_renders(name: str) -> None:
    chat = conversation(random.Random(1), 3, with_tools=True)[-1]
    text = rendered(name, chat)
    pieces = pieces_of_chat(chat, text)
    assert "".join(piece.text for piece in pieces) == text
    found = named(pieces)
    for number, message in enumerate(chat.messages, 1):
        role = message["role"]
        part = "system" if role == "system" else f"message {number} ({role})"
        assert found[part].strip() == message["content"].strip()
    listed = [piece.part.label for piece in pieces if piece.part.kind == "tool"]
    assert listed == [tool["function"]["name"] for tool in tools()]


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "ibm-granite-granite-3.3-2B-Instruct"])
def test_parts_are_found_in_text_alone(name: str) -> None:
    """As in a log of rendered prompts, without the conversation."""
    chat = conversation(random.Random(1), 3, with_tools=True)[-1]
    text = rendered(name, chat)
    pieces = pieces_of_text(text)
    assert "".join(piece.text for piece in pieces) == text
    found = named(pieces)
    assert instructions().strip() in found["system"]
    assert [piece.part.label for piece in pieces if piece.part.kind == "tool"] == [
        tool["function"]["name"] for tool in tools()
    ]
    assert any(chat.messages[-1]["content"].strip() == text.strip() for text in found.values())


def plain(chat: Chat) -> Chat:
    """Without a system message, so that granite's template writes its own."""
    return Chat(chat.messages[1:], [], {})


@pytest.mark.parametrize("name", ["openai-gpt-oss-120b", "ibm-granite-granite-3.3-2B-Instruct"])
@pytest.mark.parametrize("as_text", [False, True])
def test_the_date_is_the_templates(name: str, as_text: bool) -> None:
    """H3: gpt-oss and granite write the date near the start; nobody's prompt is to blame."""
    chat = plain(conversation(random.Random(2), 3)[-1])
    texts = [rendered(name, chat, day) for day in (14, 15)]
    earlier, later = (pieces_of_text(text) if as_text else pieces_of_chat(chat, text) for text in texts)
    found = culprit(earlier, later)
    assert found is not None
    assert (found.part.kind, found.kind, found.blamed) == ("template", Kind.DATE, True)
    assert "template" in found.fix


def test_a_template_s_date_in_a_log(explain: Explain) -> None:
    """H3: proved, with its place: one day's prompts do not match the next day's."""
    chats = [plain(chat) for chat in conversation(random.Random(3), 6)]
    texts = [rendered("openai-gpt-oss-120b", chat, 14 + k // 3) for k, chat in enumerate(chats)]
    explained = explain(text_log(texts, 20_000))
    (finding,) = explained.report.findings
    assert (finding.kind, finding.part.kind, finding.times) == (Kind.DATE, "template", 1)
    assert finding.example.earlier == "Current date: 2026-03-14"


def test_tools_as_types_and_as_json() -> None:
    schema = json.dumps(tools()[0])
    assert named(pieces_of_text(f"Tools:\n{schema}\nGo."))["tool 1 'activate_skill'"] == schema


def pair(earlier: str, later: str) -> tuple[Kind, bool]:
    found = culprit(pieces_of_text(earlier), pieces_of_text(later))
    assert found is not None
    return found.kind, found.blamed


def test_two_prompts_alone() -> None:
    long = instructions()
    assert culprit(pieces_of_text(long), pieces_of_text(long)) is None
    assert pair(long, long + "and more\n") == (Kind.TEXT, False)
    assert pair(f"at 12:00:01\n{long}", f"at 12:00:02\n{long}") == (Kind.CLOCK, True)
    assert pair(f"{long}at 12:00:01", f"{long}at 12:00:02") == (Kind.CLOCK, False)
    assert pair(f"Request 17.\n{long}", f"Request 18.\n{long}") == (Kind.COUNTER, True)
    assert pair(f"Be brief.\n{long}", f"Be brief. \n{long}") == (Kind.WHITESPACE, True)
    assert pair(f"caf\u00e9\n{long}", f"cafe\u0301\n{long}") == (Kind.WHITESPACE, True)
    assert pair(f"thinking: on\n{long}", f"thinking: off\n{long}") == (Kind.FLAG, True)
    assert pair(f"for ann@x.org\n{long}", f"for bob@y.net\n{long}") == (Kind.USER, True)
    assert pair(f"{long[:900] * 2}a", f"{long[:900] * 2}b")[1] is False


@pytest.mark.parametrize(("false_starts", "found"), [(150, True), (250, False)])
def test_what_is_no_tool_is_not_looked_at_for_ever(false_starts: int, found: bool) -> None:
    """Each false start is read up to the end of the text, so that their number is bounded."""
    tool = '{"type": "function", "function": {"name": "search", "parameters": {}}}'
    text = "<|im_start|>system\n" + '{"type": [' * false_starts + f"\n{tool}<|im_end|>\n"
    pieces = pieces_of_text(text)
    assert "".join(piece.text for piece in pieces) == text
    assert (Part("tool", 1, "search") in [piece.part for piece in pieces]) is found
