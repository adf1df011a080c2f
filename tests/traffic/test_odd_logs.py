"""Logs as others write them: tables, encodings, wrappers, cut beginnings, answers alone, engines of other versions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from pageinn.memory.tokens import unpack
from pageinn.traffic import Chat, Length, ReadError, Record, Reported, Text, Tokens, open_renderer, read

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]
ROWS = "".join(json.dumps({"messages": MESSAGES, "time": n}) + "\n" for n in range(3))


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def records(path: Path, format: str | None = None) -> list[Record]:
    return list(read([path], format))


def table(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        out = csv.writer(file, delimiter=delimiter)
        out.writerow(rows[0])
        out.writerows([cell if isinstance(cell, str) else json.dumps(cell) for cell in row.values()] for row in rows)
    return path


class TestTables:
    @pytest.mark.parametrize(
        ("head", "row"),
        [
            ("TIMESTAMP;ContextTokens;GeneratedTokens", "0.5;374;44"),
            ("timestamp\tinput_tokens\toutput_tokens", "0.5\t374\t44"),
            ("Timestamp,Input Length,Output Length", "0.5,374,44"),
            ('"arrived_at","num_prefill_tokens","num_decode_tokens"', '"0.5","374","44"'),
        ],
    )
    @pytest.mark.parametrize("mark", ["", "\ufeff"])
    def test_lengths_with_any_delimiter(self, tmp_path: Path, head: str, row: str, mark: str) -> None:
        (record,) = records(written(tmp_path / "t.csv", f"{mark}{head}\r\n{row}\r\n"))
        assert (record.prompt, record.output_tokens, record.time) == (Length(374), 44, 0.5)

    def test_burstgpt_with_sessions(self, tmp_path: Path) -> None:
        head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
        (record,) = records(written(tmp_path / "b.csv", f"{head}\n5,a,1.5,GPT-4,472,18,490,API log\n"))
        assert (record.session, record.duration, record.time) == ("a", 1.5, 5.0)

    def test_langfuse(self, tmp_path: Path) -> None:
        usage = {"input": 100, "input_cached_tokens": 50, "output": 3}
        row = {"id": "1", "type": "GENERATION", "startTime": "2024-01-01T00:00:01Z", "input": MESSAGES}
        row |= {"output": {"content": "Hello."}, "usageDetails": usage}
        reading = read([table(tmp_path / "t.csv", [row, row])])
        found = list(reading)
        assert reading.report.formats == {"langfuse": 2}
        assert (found[0].prompt, found[0].reported) == (Chat(MESSAGES, [], {}), Reported(150, 50, 0))

    def test_prompts_keep_their_lines_and_digits(self, tmp_path: Path) -> None:
        rows = [{"prompt": "One,\n2", "tenant": "a"}, {"prompt": "1", "tenant": "b"}]
        found = records(table(tmp_path / "t.csv", rows, ";"))
        assert [record.prompt for record in found] == [Text("One,\n2"), Text("1")]
        assert [record.tenant for record in found] == ["a", "b"]

    def test_token_ids(self, tmp_path: Path) -> None:
        (record,) = records(table(tmp_path / "t.csv", [{"timestamp": 7, "prompt_token_ids": [1, 2]}]))
        assert isinstance(record.prompt, Tokens)
        assert (unpack(record.prompt.packed), record.time) == ([1, 2], 7.0)

    @pytest.mark.parametrize("text", ["Hello, prompt, world\nHello\n", "prompt, what?\nNo, thanks.\n", "input;\n"])
    def test_lines_of_text_are_no_table(self, tmp_path: Path, text: str) -> None:
        found = records(written(tmp_path / "p.txt", text))
        assert [record.prompt for record in found] == [Text(line) for line in text.splitlines()]


class TestText:
    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    def test_byte_order_marks(self, tmp_path: Path, encoding: str) -> None:
        path = written(tmp_path / "log", ROWS.encode(encoding))
        assert [record.prompt for record in records(path)] == [Chat(MESSAGES, [], {})] * 3

    def test_halves_of_surrogate_pairs(self, tmp_path: Path, smollm2_path: Path) -> None:
        """JSON may escape half a pair; a whole pair is one sign."""
        rows = [
            r'{"prompt": "a\ud800b"}',
            r'{"prompt": "\ud83d\ude00"}',
            r'{"messages": [{"role": "user", "content": "\udfff"}]}',
        ]
        text, pair, chat = read([written(tmp_path / "log", "\n".join(rows))], ordered=False)
        assert (text.prompt, pair.prompt) == (Text("a\ufffdb"), Text("\U0001f600"))
        renderer = open_renderer(smollm2_path)
        assert all(renderer.render(record) for record in (text, pair, chat))
        assert renderer.encode("\ud800", False) == renderer.encode("\ufffd", False)
        document = records(written(tmp_path / "log.json", "[" + ",\n".join(rows) + "]"))
        assert [record.prompt for record in document] == [text.prompt, pair.prompt, chat.prompt]

    def test_big_endian_in_a_table(self, tmp_path: Path) -> None:
        text = "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n1,2,3\r\n" * 1 + "4,5,6\r\n" * 30_000
        assert len(records(written(tmp_path / "t.csv", text.encode("utf-16-be")))) == 30_001

    def test_zero_bytes_are_no_prompt(self, tmp_path: Path) -> None:
        with pytest.raises(ReadError, match="zero byte"):
            records(written(tmp_path / "log", ROWS.encode("utf-16-le")))

    def test_blank_lines_are_no_prompts(self, tmp_path: Path) -> None:
        assert [record.prompt for record in records(written(tmp_path / "p.txt", "One\n  \n\t\nTwo\n"))] == [
            Text("One"),
            Text("Two"),
        ]

    def test_text_in_brackets_or_quotes(self, tmp_path: Path) -> None:
        text = '[INST] One [/INST]\n{{ two }}\n"Three" he said\n'
        for lines in (text, "".join(reversed(text.splitlines(keepends=True)))):
            found = records(written(tmp_path / "p.txt", lines))
            assert [record.prompt for record in found] == [Text(line) for line in lines.splitlines()]

    def test_a_log_that_begins_inside_a_row(self, tmp_path: Path) -> None:
        reading = read([written(tmp_path / "log", ROWS[20:])])
        assert [record.prompt for record in reading] == [Chat(MESSAGES, [], {})] * 2
        assert reading.report.broken == 1

    def test_brackets_without_end(self, tmp_path: Path) -> None:
        reading = read([written(tmp_path / "log", "[" * 100_000 + "\n" + ROWS)])
        assert len(list(reading)) == 3
        assert "nested too deeply" in reading.report.first_broken[0].reason

    @pytest.mark.parametrize("depth", [600, 950])
    def test_a_deep_row_of_a_document_is_one_broken_row(self, tmp_path: Path, depth: int) -> None:
        """Python reads it, and goes no further into it."""
        deep = f'{{"messages": [], "extra": {"[" * depth}{"]" * depth}}}'
        reading = read([written(tmp_path / "log.json", f"[\n{deep},\n{ROWS.strip().splitlines()[0]}\n]\n")])
        assert [record.prompt for record in reading] == [Chat(MESSAGES, [], {})]
        assert (reading.report.broken, reading.report.first_broken[0].reason) == (1, "JSON nested too deeply")


class TestWrapped:
    @pytest.mark.parametrize("count", [1, 2, 3, 30])
    @pytest.mark.parametrize(
        ("head", "between", "tail"),
        [
            ("[\n", ",\n", "\n]\n"),
            ("[", ",\n", "]\n"),
            ("[", "\n,", "\n]"),
            ("[\r\n", ",\r\n", "\r\n]"),
            ("[\n", "\n,\n", "\n]"),
            ('{"data": [\n', ",\n", "\n]}"),
            ('{"data": [', ",\n", "\n]}"),
        ],
    )
    def test_an_array_with_a_row_a_line(self, tmp_path: Path, count: int, head: str, between: str, tail: str) -> None:
        """However few its rows are: the last one, which no comma follows, is not the only one."""
        text = head + between.join([ROWS.splitlines()[0]] * count) + tail
        reading = read([written(tmp_path / "log.json", text)])
        assert [record.prompt for record in reading] == [Chat(MESSAGES, [], {})] * count
        assert reading.report.broken == 0

    @pytest.mark.parametrize("name", ["data", "rows", "items", "requests"])
    def test_rows_inside_an_object(self, tmp_path: Path, name: str) -> None:
        whole = {name: [json.loads(row) for row in ROWS.splitlines()], "meta": {"page": 1}}
        for indent in (None, 1):
            found = records(written(tmp_path / "log.json", json.dumps(whole, indent=indent)))
            assert [record.prompt for record in found] == [Chat(MESSAGES, [], {})] * 3

    def test_message_batches(self, tmp_path: Path) -> None:
        body = {"model": "c", "max_tokens": 9, "system": "Be brief.", "messages": MESSAGES[1:]}
        (record,) = records(written(tmp_path / "log", json.dumps({"custom_id": "1", "params": body})), "anthropic")
        assert record.prompt == Chat(MESSAGES, [], {})
        assert records(tmp_path / "log") == [record]

    def test_generate_of_ollama(self, tmp_path: Path) -> None:
        row = {"model": "m", "prompt": "Hi.", "system": "Be brief."}
        rows = [row, {**row, "raw": True}]
        found = records(written(tmp_path / "log", "\n".join(map(json.dumps, rows))))
        assert [record.prompt for record in found] == [Chat(MESSAGES, [], {}), Text("Hi.")]


class TestAnswersAlone:
    def test_results_of_batches(self, tmp_path: Path) -> None:
        usage = {"prompt_tokens": 2200, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1024}}
        openai = {"custom_id": "1", "response": {"status_code": 200, "body": {"created": 1711652795, "usage": usage}}}
        other = {"input_tokens": 10, "output_tokens": 34, "cache_read_input_tokens": 500}
        anthropic = {"custom_id": "2", "result": {"type": "succeeded", "message": {"model": "c", "usage": other}}}
        failed = {"custom_id": "3", "response": None, "error": {"message": "expired"}}
        bare = {"object": "chat.completion", "created": 1711652799, "usage": {"prompt_tokens": 7}}
        rows = [openai, failed, anthropic, bare]
        reading = read([written(tmp_path / "log", "\n".join(map(json.dumps, rows)))], ordered=False)
        found = [(record.prompt, record.reported, record.time, record.output_tokens) for record in reading]
        assert found == [
            (Length(2200), Reported(2200, 1024, 0), 1711652795.0, 2),
            (Length(510), Reported(510, 500, 0), None, 34),
            (Length(7), None, 1711652799.0, None),
        ]
        assert (dict(reading.report.formats), reading.report.broken) == ({"answers": 3}, 1)

    def test_a_body_is_preferred_to_its_answer(self, tmp_path: Path) -> None:
        row = {"request": {"messages": MESSAGES}, "response": {"usage": {"prompt_tokens": 7}}}
        assert records(written(tmp_path / "log", json.dumps(row)))[0].prompt == Chat(MESSAGES, [], {})


class TestConversations:
    def test_wildchat_and_lmsys(self, tmp_path: Path) -> None:
        turns = [{**MESSAGES[1], "toxic": False}, {"role": "assistant", "content": "Hello."}]
        wild = {"conversation_hash": "h", "model": "m", "timestamp": "2023-04-09 00:02:53+00:00", "conversation": turns}
        lmsys = {"conversation_id": "l", "model": "m", "conversation": turns, "turn": 1}
        path = written(tmp_path / "log", f"{json.dumps(wild)}\n{json.dumps(lmsys)}\n")
        found = [(record.session, record.time, record.output) for record in read([path], ordered=False)]
        assert found == [("h", 1680998573.0, "Hello."), ("l", None, "Hello.")]

    def test_a_system_prompt_beside_the_turns(self, tmp_path: Path) -> None:
        turns = [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}]
        (record,) = records(written(tmp_path / "log", json.dumps({"system": "Be brief.", "conversations": turns})))
        assert record.prompt == Chat(MESSAGES, [], {})

    def test_instructions_are_no_prompts(self, tmp_path: Path) -> None:
        """The `input` of such a row is what an instruction is about, not a prompt."""
        row = {"instruction": "Sum.", "input": "1 2", "output": "3"}
        with pytest.raises(ReadError, match="no known format"):
            records(written(tmp_path / "log", json.dumps(row)))


class TestOtherVersions:
    @pytest.mark.parametrize(
        "line",
        [
            'Received request cmpl-1: prompt: "It\'s", params: SamplingParams(n=1), prompt_token_ids: [1, 2], lora',
            'Received request cmpl-1: prompt: "It\'s", sampling_params: SamplingParams(n=1), prompt_token_ids: [1, 2].',
            "Received request 1: prompt: 'It', prefix_pos: None,sampling_params: SamplingParams(n=1), "
            "prompt_token_ids: [1, 2].",
            "Request cmpl-1 details: prompt: 'It', prompt_token_ids: [1, 2], prompt_embeds shape: None.",
        ],
    )
    def test_requests_of_vllm(self, tmp_path: Path, line: str) -> None:
        (record,) = records(written(tmp_path / "log", f"INFO 05-01 08:00:01 logger.py:43] {line}\n"))
        assert isinstance(record.prompt, Tokens)
        assert unpack(record.prompt.packed) == [1, 2]

    def test_messages_as_events_of_a_span(self, tmp_path: Path) -> None:
        events = [
            {"name": "gen_ai.system.message", "attributes": {"gen_ai.event.content": '{"content": "Be brief."}'}},
            {"name": "gen_ai.user.message", "attributes": {"content": "Hi."}},
            {"name": "gen_ai.choice", "attributes": {"message": "Hello."}},
        ]
        span = {"attributes": {"gen_ai.system": "openai", "gen_ai.usage.prompt_tokens": 9}, "events": events}
        (record,) = records(written(tmp_path / "log", json.dumps(span)))
        assert record.prompt == Chat(MESSAGES, [], {})
