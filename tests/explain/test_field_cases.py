"""Real prompts with a fault injected: each is found, named, placed, proved and, where it may be, fixed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from explaining import Explain
from faulty_logs import (
    answers,
    chat_log,
    clock,
    conversation,
    instructions,
    outputs,
    rows,
    tasks,
    text_log,
    tools,
    uuid_of,
)

from pageinn.explain.analysis import Explained
from pageinn.explain.fixed_log import body, fixed_records
from pageinn.explain.kinds import Kind
from pageinn.explain.report import Finding
from pageinn.traffic import Chat, Record, Reported, Text


def asking(system: str, k: int) -> Chat:
    """A system prompt and a task of its own."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"{tasks()[k % 3]} {k}"}]
    return Chat(messages, [], {})


def only(explained: Explained) -> Finding:
    assert [str(finding.kind) for finding in explained.report.findings] != []
    (finding,) = explained.report.findings
    assert finding.after.hit_rate > finding.before.hit_rate == explained.report.now.hit_rate
    assert finding.after == explained.report.fixed
    return finding


def refixed(explained: Explained, explain: Explain) -> Explained:
    """The fixed log explained: it must have nothing left, and the hit rate that was promised."""
    again = explain(list(fixed_records(explained)))
    assert again.report.now.hit_rate == pytest.approx(explained.report.fixed.hit_rate, abs=0.02)
    assert not again.report.findings
    return again


def test_a_nonce_heads_the_system_prompt(explain: Explain) -> None:
    """H1: about 10 of 60,000 tokens match; the line and the offset are named."""
    rng = random.Random(1)
    long = instructions() * 50
    log = chat_log([asking(f"You are careful.\nnonce: {uuid_of(rng)}\n{long}", k) for k in range(4)])
    explained = explain(log)
    finding = only(explained)
    assert (finding.kind, finding.detail, finding.part.kind) == (Kind.ID, "UUID", "system")
    assert (finding.position.line, finding.position.column) == (2, len("nonce: "))
    assert finding.position.tokens < 20
    assert finding.position.of > 50_000
    assert explained.report.now.hit_rate < 0.001
    assert explained.report.fixed.hit_rate > 0.7
    assert finding.requests == finding.times == 3
    moved = next(iter(fixed_records(explained))).prompt
    assert isinstance(moved, Chat)
    assert "nonce" not in moved.messages[0]["content"]
    assert "nonce: " in moved.messages[-1]["content"]
    refixed(explained, explain)


def test_a_nonce_heads_prompts_that_name_no_parts(explain: Explain) -> None:
    """H1: the turns of one agent, whose text was rendered by whoever logged it."""
    rng = random.Random(2)
    turns = [row.input for row in rows()[:6]]
    explained = explain(text_log([f"Request-ID: {uuid_of(rng)}\n{text}" for text in turns * 2]))
    finding = only(explained)
    assert (finding.kind, finding.part.kind, finding.position.line) == (Kind.ID, "prompt", 1)
    assert explained.report.now.hit_rate == 0
    assert explained.report.fixed.hit_rate > 0.85
    refixed(explained, explain)


def test_a_random_word_is_an_id_by_its_label(explain: Explain) -> None:
    """H1: a nonce of letters alone, of changing length."""
    rng = random.Random(3)

    def nonce() -> str:
        return "".join(rng.choices("abcdefghij", k=rng.randrange(6, 12)))

    explained = explain(chat_log([asking(f"nonce={nonce()}\n{instructions()}", k) for k in range(6)]))
    assert only(explained).kind is Kind.ID
    refixed(explained, explain)


def test_a_session_id_inside_a_path_is_all_that_differs(explain: Explain) -> None:
    """H2: it stands in two lines; it is one finding, and the path stays a path."""

    def system(k: int) -> str:
        session = uuid_of(random.Random(k))
        work = f"Work in /home/agent/sessions/{session}/repo and nowhere else.\n"
        return work + instructions() + f"Write notes to /home/agent/sessions/{session}/notes.md\n" + instructions()

    explained = explain(chat_log([asking(system(k // 3), k) for k in range(12)]))
    finding = only(explained)
    assert (finding.kind, finding.detail) == (Kind.ID, "UUID")
    assert (finding.position.line, finding.position.column) == (1, len("Work in /home/agent/sessions/"))
    assert finding.values == 4
    fixed = next(iter(fixed_records(explained))).prompt
    assert isinstance(fixed, Chat)
    assert "Work in /home/agent/sessions/<id>/repo and nowhere else.\n" in fixed.messages[0]["content"]
    assert uuid_of(random.Random(0)) in fixed.messages[-1]["content"]
    refixed(explained, explain)


@pytest.mark.parametrize(
    ("form", "step", "kind", "granularity"),
    [
        ("%Y-%m-%dT%H:%M:%S.%f", 7, Kind.CLOCK, "sub-second"),
        ("%Y-%m-%d %H:%M:%S", 7, Kind.CLOCK, "second"),
        ("%d %B %Y, %I:%M:%S %p", 7, Kind.CLOCK, "second"),
        ("%Y-%m-%d %H:%M", 20, Kind.CLOCK, "minute"),
        ("%Y-%m-%d %H:%M:00", 20, Kind.CLOCK, "minute"),
        ("%Y-%m-%d %H:00", 900, Kind.CLOCK, "hour"),
        ("%s", 7, Kind.CLOCK, "second"),
        ("%A, %B %d, %Y", 20_000, Kind.DATE, "day"),
        ("%Y-%m-%d", 20_000, Kind.DATE, "day"),
        ("%d/%m/%Y", 20_000, Kind.DATE, "day"),
    ],
)
def test_a_clock_is_named_with_its_granularity(
    explain: Explain, form: str, step: float, kind: Kind, granularity: str
) -> None:
    """H3: what a change costs is what the first request after it computes again."""

    def told(k: int) -> str:
        when = clock(k, step + 0.137 if "%f" in form else step)
        return str(int(when.timestamp())) if form == "%s" else when.strftime(form)

    systems = [f"You are an engineer.\nCurrent time: {told(k)}\n{instructions()}" for k in range(20)]
    explained = explain(chat_log([asking(system, k) for k, system in enumerate(systems)], step))
    finding = only(explained)
    assert (finding.kind, finding.detail) == (kind, granularity)
    assert (finding.part.kind, finding.position.line) == ("system", 2)
    assert finding.values == len(set(systems))
    each = len(instructions()) / 3.5
    # Each new reading costs the instructions once, or once more where all that came before parted earlier.
    assert finding.tokens >= 0.5 * (len(set(systems)) - 1) * each
    refixed(explained, explain)


def test_tools_in_another_order(explain: Explain) -> None:
    """H4: the same tools, shuffled in each request of one conversation."""

    def shuffled(k: int) -> list[dict[str, Any]]:
        listed = list(tools())
        random.Random(k).shuffle(listed)
        return listed

    chats = [chat._replace(tools=shuffled(k)) for k, chat in enumerate(conversation(random.Random(4), 8))]
    explained = explain(chat_log(chats))
    finding = only(explained)
    assert (finding.kind, finding.detail) == (Kind.TOOL_ORDER, "same meaning, other order")
    assert finding.part.kind == "tool"
    assert finding.part.label in {tool["function"]["name"] for tool in tools()}
    fixed = [record.prompt for record in fixed_records(explained)]
    names = {tuple(tool["function"]["name"] for tool in prompt.tools) for prompt in fixed if isinstance(prompt, Chat)}
    assert names == {tuple(sorted(tool["function"]["name"] for tool in tools()))}
    refixed(explained, explain)


def rekeyed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        return {key: rekeyed(value[key], rng) for key in keys}
    return [rekeyed(item, rng) for item in value] if isinstance(value, list) else value


def test_keys_in_another_order_and_arrays_left_alone(explain: Explain) -> None:
    """H4: the keys of real schemas shuffled; enums keep their order in the fixed log."""
    chats = [
        chat._replace(tools=rekeyed(tools(), random.Random(k)))
        for k, chat in enumerate(conversation(random.Random(5), 8))
    ]
    explained = explain(chat_log(chats))
    finding = only(explained)
    assert (finding.kind, finding.detail) == (Kind.KEY_ORDER, "same meaning, other order")
    for record in fixed_records(explained):
        assert isinstance(record.prompt, Chat)
        by_name = {tool["function"]["name"]: tool for tool in record.prompt.tools}
        assert [by_name[tool["function"]["name"]] for tool in tools()] == tools()
        asked = by_name["ask_user"]["function"]["parameters"]["properties"]["questions"]["items"]["properties"]
        assert asked["type"]["enum"] == ["choice", "text", "yesno"]
    refixed(explained, explain)


def test_an_enum_in_another_order_is_another_meaning(explain: Explain) -> None:
    """H4: it is not called the same, and no fixed log reorders it."""

    def ask(k: int) -> list[dict[str, Any]]:
        changed = json.loads(json.dumps(tools()))
        enum = next(tool for tool in changed if tool["function"]["name"] == "ask_user")
        question = enum["function"]["parameters"]["properties"]["questions"]["items"]["properties"]["type"]
        question["enum"] = question["enum"][:: 1 if k % 2 else -1]
        return list(changed)

    chats = [chat._replace(tools=ask(k)) for k, chat in enumerate(conversation(random.Random(6), 8))]
    explained = explain(chat_log(chats))
    assert not {Kind.KEY_ORDER, Kind.TOOL_ORDER} & {finding.kind for finding in explained.report.findings}
    for record, before in zip(fixed_records(explained), chats, strict=True):
        assert isinstance(record.prompt, Chat)
        assert record.prompt.tools == before.tools


def test_json_inside_a_system_prompt_in_another_order(explain: Explain) -> None:
    """H4: settings that an application writes into the text."""
    settings = {"region": "eu", "limits": {"rate": 5, "burst": 9}, "modes": ["fast", "safe"], "owner": "platform"}

    def system(k: int) -> str:
        return f"Settings:\n{json.dumps(rekeyed(settings, random.Random(k)), indent=1)}\n{instructions()}"

    explained = explain(chat_log([asking(system(k), k) for k in range(8)]))
    finding = only(explained)
    assert (finding.kind, finding.detail, finding.part.kind) == (
        Kind.KEY_ORDER,
        "same meaning, other order",
        "system",
    )
    for record in fixed_records(explained):
        assert isinstance(record.prompt, Chat)
        text = record.prompt.messages[0]["content"]
        assert json.loads(text[text.index("{") : text.index("}\n<instr") + 1]) == settings
    refixed(explained, explain)


def test_the_tool_list_grows(explain: Explain) -> None:
    """H5: the names that were added; the fixed log does not declare tools that the application did not."""
    chats = [chat._replace(tools=tools()[: 6 + k // 3]) for k, chat in enumerate(conversation(random.Random(7), 10))]
    explained = explain(chat_log(chats))
    finding = only(explained)
    assert finding.kind is Kind.TOOLS
    assert finding.added == tuple(tool["function"]["name"] for tool in tools()[6:9])
    assert finding.removed == ()
    assert finding.times == 3
    assert not finding.written
    assert explained.report.fixed.hit_rate > 0.85
    assert [record.prompt for record in fixed_records(explained)] == chats


def test_tools_written_into_a_rendered_prompt(explain: Explain) -> None:
    """H5: the log has text, as ChatML with a schema to a line."""

    def rendered(count: int, chat: Chat) -> str:
        head = "\n".join(["# Tools", *(json.dumps(tool) for tool in tools()[:count])])
        said = [f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in chat.messages[1:]]
        system = f"<|im_start|>system\n{instructions()}\n{head}<|im_end|>\n"
        return system + "".join(said) + "<|im_start|>assistant\n"

    chats = conversation(random.Random(8), 9)
    explained = explain(text_log([rendered(4 + k // 3, chat) for k, chat in enumerate(chats)]))
    finding = only(explained)
    assert (finding.kind, finding.added) == (Kind.TOOLS, tuple(t["function"]["name"] for t in tools()[4:6]))


@pytest.mark.parametrize(
    "variants", [("detailed thinking on", "detailed thinking off"), ("Reasoning: high", "Reasoning: low")]
)
def test_a_flag_makes_two_variants(explain: Explain, variants: tuple[str, str]) -> None:
    """H6: an early token is one of two; how many requests each variant has."""
    rng = random.Random(9)
    explained = explain(
        chat_log([asking(f"{rng.choice(variants)}\n{instructions()}", k) for k in range(20)]),
    )
    finding = only(explained)
    assert (finding.kind, finding.values, finding.part.kind) == (Kind.FLAG, 2, "system")
    assert {share.text for share in finding.shares} == {variant.split()[-1] for variant in variants}
    refixed(explained, explain)


def test_a_line_that_is_there_or_not_is_a_variant(explain: Explain) -> None:
    """H6: the switch is a line of its own."""
    rng = random.Random(10)
    switch = "You may browse the web for recent facts.\n"
    explained = explain(
        chat_log([asking(f"You help.\n{switch * rng.randrange(2)}{instructions()}", k) for k in range(16)])
    )
    finding = only(explained)
    assert (finding.kind, finding.detail) == (Kind.FLAG, "present or absent")
    refixed(explained, explain)


def test_a_timestamp_in_an_appended_result_is_not_to_be_blamed(explain: Explain) -> None:
    """H7: nothing that could be reused stands behind it."""
    turns = [f"{rows()[0].input}\n<output>\nstarted {clock(k)}\n</output>\n" for k in range(8)]
    assert not explain(text_log(turns)).report.findings
    rng = random.Random(11)
    chats = conversation(rng, 8)
    for k, chat in enumerate(chats):
        chat.messages[-1] = {**chat.messages[-1], "content": f"{chat.messages[-1]['content']}\nat {clock(k)}"}
    assert not explain(chat_log(chats)).report.findings


def test_two_probes_a_second_apart_are_not_to_be_blamed(explain: Explain) -> None:
    """H7: short ones with a clock are below granularity; long ones that repeat are no fault of the prompts."""
    turns = [row.input for row in rows()[:4]]
    report = explain(text_log([*turns[:2], f"ping {clock(0)}", f"ping {clock(1)}", *turns[2:]])).report
    assert not report.findings
    assert [(note.kind, note.requests) for note in report.notes] == [("below granularity", 2)]

    probes = [Record("log", k, Text(turns[0]), time=float(k), reported=Reported(1400, 0, 0)) for k in range(2)]
    report = explain(probes).report
    assert not report.findings
    assert [(note.kind, note.requests) for note in report.notes] == [("not reused", 1)]


def test_prompts_shorter_than_a_block_read_as_below_granularity(explain: Explain) -> None:
    """F4: and so do shared prefixes shorter than one."""
    report = explain(text_log([f"Translate {word}" for word in ["cat", "dog", "bird", "fish", "horse", "cow"]])).report
    assert (report.findings, report.now.hit_rate) == ((), 0.0)
    assert [note.kind for note in report.notes] == ["below granularity"]
    assert "not a broken cache" in report.notes[0].text

    report = explain(text_log([f"You are helpful.\n{output}" for output in outputs()[:6]])).report
    assert not report.findings
    assert "below granularity" in {note.kind for note in report.notes}


def test_a_user_name_a_counter_and_line_ends(explain: Explain) -> None:
    names = ["Alice Smith", "Bob Jones", "Carla", "Dmitri", "Eve", "Alice Smith", "Fay"]
    named = explain(
        chat_log([asking(f"You assist {n} today. Be kind.\n{instructions()}", k) for k, n in enumerate(names)])
    )
    assert named.report.findings[0].kind in (Kind.USER, Kind.OTHER)
    labelled = explain(chat_log([asking(f"User name: {n}\n{instructions()}", k) for k, n in enumerate(names)]))
    assert (only(labelled).kind, only(labelled).values) == (Kind.USER, 6)

    chats = conversation(random.Random(12), 8)
    counted = [
        Chat([{"role": "system", "content": f"Steps left: {50 - k}\n{instructions()}"}, *chat.messages[1:]], [], {})
        for k, chat in enumerate(chats)
    ]
    explained = explain(chat_log(counted))
    assert only(explained).kind is Kind.COUNTER
    refixed(explained, explain)

    ended = [f"You help.\n{instructions()}".replace("\n", "\r\n" if k % 3 == 2 else "\n") for k in range(12)]
    explained = explain(chat_log([asking(system, k) for k, system in enumerate(ended)]))
    assert (only(explained).kind, only(explained).detail) == (Kind.WHITESPACE, "line ends")
    refixed(explained, explain)


def test_a_conversation_that_drops_its_oldest_messages(explain: Explain) -> None:
    """A sliding window edits the past: proved by keeping it, never written into a fixed log."""
    chats = conversation(random.Random(13), 10)
    slid = [Chat([*chat.messages[:2], *chat.messages[2:][-8:]], [], {}) for chat in chats]
    explained = explain(chat_log(slid, sessions=["one"] * 10))
    finding = only(explained)
    assert (finding.kind, finding.detail, finding.written) == (Kind.HISTORY, "messages dropped", False)
    assert finding.part.kind == "message"
    assert explained.report.fixed.hit_rate > 0.8
    assert [record.prompt for record in fixed_records(explained)] == slid


def test_shuffled_examples(explain: Explain) -> None:
    """The same examples in another order in each request: named and proved; their order may mean something."""
    rng = random.Random(16)
    examples = [f"Example: {output}\nAnswer: {answer}\n" for output, answer in zip(outputs(), answers(), strict=False)]

    def system() -> str:
        rng.shuffle(examples)
        return f"Classify.\n{''.join(examples)}{instructions()}"

    chats = [asking(system(), k) for k in range(10)]
    explained = explain(chat_log(chats))
    finding = only(explained)
    assert (finding.kind, finding.part.kind, finding.written) == (Kind.ORDER, "system", False)
    assert finding.times == 9
    assert explained.report.fixed.hit_rate > 0.8
    assert [record.prompt for record in fixed_records(explained)] == chats


def test_tools_left_out_of_some_requests(explain: Explain) -> None:
    """H5: an agent that forces a plain answer by sending no tools throws its whole prefix away."""
    chats = conversation(random.Random(17), 9, with_tools=True)
    sent = [chat._replace(tools=[] if k % 3 == 2 else chat.tools) for k, chat in enumerate(chats)]
    explained = explain(chat_log(sent))
    finding = only(explained)
    assert (finding.kind, finding.removed) == (Kind.TOOLS, tuple(tool["function"]["name"] for tool in tools()))
    assert explained.report.fixed.hit_rate > 0.85


def test_two_faults_are_two_steps(explain: Explain) -> None:
    """The costs add up: each is proved on top of those above it."""
    rng = random.Random(14)
    systems = [
        f"Date: {clock(k, 40_000):%Y-%m-%d}\n{instructions()}session {uuid_of(rng)}\n{''.join(outputs()[:3])}"
        for k in range(12)
    ]
    explained = explain(chat_log([asking(system, k) for k, system in enumerate(systems)], 40_000))
    first, second = explained.report.findings
    assert (first.kind, second.kind) == (Kind.DATE, Kind.ID)
    assert first.before == explained.report.now
    assert second.before == first.after
    assert second.after == explained.report.fixed
    assert first.position.tokens < second.position.tokens
    refixed(explained, explain)


def test_ids_without_text_are_said_not_to_be_explained(explain: Explain) -> None:
    from pageinn.traffic import BlockIds, Length

    records = [
        *text_log([rows()[0].input]),
        Record("log", 2, BlockIds([1, 2], 512, 900, False), time=2.0),
        Record("log", 3, Length(900), time=3.0),
    ]
    report = explain(records).report
    assert report.requests == 1
    assert [(note.kind, note.requests) for note in report.notes] == [("no text", 2)]


def test_bodies_of_a_fixed_log_are_request_bodies(explain: Explain) -> None:
    chats = [chat._replace(template_kwargs={"enable_thinking": False}) for chat in conversation(random.Random(15), 2)]
    records = chat_log(chats)
    assert [body(record) for record in fixed_records(explain(records))] == [
        {"messages": chat.messages, "chat_template_kwargs": {"enable_thinking": False}} for chat in chats
    ]
