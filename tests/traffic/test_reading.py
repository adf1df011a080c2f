"""Each format that is read: its records, told from its content alone, and forced."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pageinn.memory.tokens import unpack
from pageinn.traffic import BlockIds, Chat, Length, ReadError, Record, Reported, Text, Tokens, read
from pageinn.traffic.ordering import in_time_order

DATA = Path(__file__).parents[1] / "data"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def records(path: Path, format: str | None = None) -> list[Record]:
    return list(read([path], format))


class TestBodies:
    def test_openai_chat_bare_and_wrapped(self, tmp_path: Path) -> None:
        body = {"model": "m", "messages": MESSAGES, "tools": [{"type": "function"}], "user": "ann"}
        usage = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}
        answer = {"choices": [{"message": {"role": "assistant", "content": "Hello."}}], "usage": usage}
        wrapped = {"timestamp": "2026-01-02T03:04:05Z", "tenant": "acme", "request": body, "response": answer}
        bare, whole = records(jsonl(tmp_path / "log.jsonl", body, wrapped))
        assert bare.prompt == whole.prompt == Chat(MESSAGES, [{"type": "function"}], {})
        assert (bare.tenant, bare.model, bare.time) == ("", "m", None)
        assert (whole.tenant, whole.time, whole.output) == ("acme", 1767323045.0, "Hello.")
        assert (whole.reported, whole.output_tokens) == (Reported(20, 16, 0), 3)

    def test_a_body_written_as_text(self, tmp_path: Path) -> None:
        row = {"body": json.dumps({"messages": MESSAGES}), "start_time": 1.5, "end_time": 4.0}
        (record,) = records(jsonl(tmp_path / "log.jsonl", row))
        assert record.prompt == Chat(MESSAGES, [], {})
        assert (record.time, record.duration) == (1.5, 2.5)

    def test_usage_without_cache_details_claims_nothing(self, tmp_path: Path) -> None:
        row = {"request": {"messages": MESSAGES}, "response": {"usage": {"prompt_tokens": 20}}}
        assert records(jsonl(tmp_path / "log.jsonl", row))[0].reported is None

    def test_completions_of_texts_and_of_ids(self, tmp_path: Path) -> None:
        path = jsonl(tmp_path / "log.jsonl", {"prompt": "a"}, {"prompt": ["b", "c"]}, {"prompt": [[1, 2], [3]]})
        prompts = [record.prompt for record in records(path)]
        assert prompts[:3] == [Text("a"), Text("b"), Text("c")]
        assert [unpack(prompt.packed) for prompt in prompts[3:] if isinstance(prompt, Tokens)] == [[1, 2], [3]]

    def test_the_responses_api(self, tmp_path: Path) -> None:
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "ok"},
        ]
        (record,) = records(jsonl(tmp_path / "log.jsonl", {"model": "m", "instructions": "Be brief.", "input": items}))
        assert isinstance(record.prompt, Chat)
        assert [message["role"] for message in record.prompt.messages] == ["system", "user", "assistant", "tool"]
        assert record.prompt.messages[1]["content"] == [{"type": "text", "text": "Hi."}]

    def test_openai_batch(self, tmp_path: Path) -> None:
        row = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": MESSAGES}}
        reading = read([jsonl(tmp_path / "batch.jsonl", row)])
        assert [record.prompt for record in reading] == [Chat(MESSAGES, [], {})]
        assert reading.report.formats == {"openai-batch": 1}

    def test_anthropic_messages_become_openais(self, tmp_path: Path) -> None:
        body = {
            "model": "claude",
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "tools": [{"name": "ls", "description": "list", "input_schema": {"type": "object"}}],
            "messages": [
                {"role": "user", "content": "Look."},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ls", "input": {"d": "."}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "a.txt"}]},
            ],
        }
        reading = read([jsonl(tmp_path / "log.jsonl", body)])
        (record,) = list(reading)
        assert reading.report.formats == {"anthropic": 1}
        function = {"name": "ls", "description": "list", "parameters": {"type": "object"}}
        call = {"id": "t", "type": "function", "function": {"name": "ls", "arguments": '{"d": "."}'}}
        assert record.prompt == Chat(
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Look."},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "t", "content": "a.txt"},
            ],
            [{"type": "function", "function": function}],
            {},
            (Chat([{"role": "system", "content": "Be brief."}], [{"type": "function", "function": function}], {}),),
        )

    def test_breakpoints_of_anthropic(self, tmp_path: Path) -> None:
        """Each is the conversation up to the marked part: of the tools, the system prompt, the messages, or all."""
        mark = {"cache_control": {"type": "ephemeral"}}
        parts = [
            {"type": "text", "text": "One."},
            {"type": "text", "text": " Two.", **mark},
            {"type": "text", "text": "!"},
        ]
        body = {
            "system": [{"type": "text", "text": "Be"}, {"type": "text", "text": " brief.", **mark}],
            "tools": [{"name": "ls", **mark}, {"name": "rm"}],
            "messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "Hm."}, MESSAGES[1]],
            **mark,
        }
        (record,) = records(jsonl(tmp_path / "log.jsonl", body))
        assert isinstance(record.prompt, Chat)
        tools, system, message, whole = record.prompt.breakpoints
        names = [[tool["function"]["name"] for tool in part.tools] for part in (tools, system)]
        assert names == [["ls"], ["ls", "rm"]]
        assert system.messages == [{"role": "system", "content": "Be brief."}]
        assert message.messages == [*system.messages, {"role": "user", "content": "One. Two."}]
        assert whole == record.prompt._replace(breakpoints=())

    def test_recorded_exchanges_of_anthropic(self) -> None:
        """Anthropic's input_tokens leave the cached ones out: 4 + 18,131 are the prompt."""
        first, second, *_ = records(DATA / "anthropic_cache" / "test_prompt_cache.yaml")
        assert first.reported == Reported(18135, 0, 18131)
        assert second.reported == Reported(18135, 18131, 0)
        assert isinstance(first.prompt, Chat)
        assert first.prompt.messages[0] == {"role": "system", "content": "very very long system prompt"}
        assert first.time == 1742287542.0
        assert first.output is not None
        assert first.output.startswith("I'll provide")

    def test_recorded_exchanges_with_compressed_answers(self) -> None:
        """The counts that are in the recorded answers."""
        found = records(DATA / "anthropic_cache" / "test_anthropic_prompt_caching_legacy.yaml")
        assert [record.reported for record in found] == [Reported(1167, 0, 1163), Reported(1167, 1163, 0)]

    def test_sharegpt_array_over_many_lines(self, tmp_path: Path) -> None:
        turns = [("human", "Hi."), ("gpt", "Hello."), ("human", "Bye."), ("gpt", "Bye.")]
        row = {"id": "c1", "conversations": [{"from": who, "value": text} for who, text in turns]}
        path = tmp_path / "sharegpt.json"
        path.write_text(json.dumps([row, {**row, "id": "c2"}], indent=1))
        found = records(path)
        assert [(record.session, record.output) for record in found] == [
            ("c1", "Hello."),
            ("c1", "Bye."),
            ("c2", "Hello."),
            ("c2", "Bye."),
        ]
        assert isinstance(found[1].prompt, Chat)
        assert [message["role"] for message in found[1].prompt.messages] == ["user", "assistant", "user"]
        assert found[2].line == 23


class TestPlain:
    def test_lines_of_text(self, tmp_path: Path) -> None:
        path = tmp_path / "prompts.txt"
        path.write_bytes("\ufeffWho?\n\nWhere, ünd\r\nWhy?".encode())
        assert [record.prompt for record in records(path)] == [Text("Who?"), Text("Where, ünd"), Text("Why?")]

    def test_json_texts_and_ids(self, tmp_path: Path) -> None:
        found = records(jsonl(tmp_path / "log.jsonl", "a\nb", {"text": "c"}, [7, 8], {"prompt_token_ids": [9]}))
        assert [record.prompt for record in found[:2]] == [Text("a\nb"), Text("c")]
        assert [unpack(each.prompt.packed) for each in found[2:] if isinstance(each.prompt, Tokens)] == [[7, 8], [9]]

    def test_agent_trace(self) -> None:
        found = records(DATA / "miniswe" / "inputs.jsonl")
        rows = [json.loads(line) for line in (DATA / "miniswe" / "inputs.jsonl").read_text().splitlines()]
        assert [record.prompt for record in found] == [Text(row["input"]) for row in rows]
        assert [record.session for record in found] == [row["session_id"] for row in rows]
        assert [record.output for record in found] == [row["output"] for row in rows]
        assert found[0].time == pytest.approx(rows[0]["timestamp"] / 1e6)


class TestBlockIds:
    def test_mooncake(self) -> None:
        first, *_ = found = records(DATA / "mooncake" / "conversation_200.jsonl")
        assert first.prompt == BlockIds(list(range(14)), 512, 6758, local=False)
        assert (first.time, first.output_tokens) == (0.0, 500)
        assert len(found) == 200
        assert found[-1].time == json.loads(last_line("mooncake/conversation_200.jsonl"))["timestamp"] / 1000

    def test_bailian(self, tmp_path: Path) -> None:
        """The shape that alibaba-edu/qwen-bailian-usagetraces-anon documents: seconds, blocks of 16."""
        row = {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132}
        row |= {"type": "text", "turn": 2, "hash_ids": list(range(1089, 1122))}
        first = {**row, "chat_id": 55, "parent_chat_id": -1, "timestamp": 3.0, "turn": 1}
        later = {**row, "chat_id": 160, "parent_chat_id": 159, "timestamp": 99.0, "turn": 3}
        opening, record, last = records(jsonl(tmp_path / "qwen.jsonl", first, row, later))
        assert record.prompt == BlockIds(list(range(1089, 1122)), 16, 521, local=False)
        assert (record.time, record.session) == (61.114, "55")
        assert opening.session == last.session == "55"

    def test_ids_written_as_digests(self, tmp_path: Path) -> None:
        """vLLM's block hashes are SHA-256: 64 hexadecimal digits, of which the last 16 are kept."""
        digests = ["0" * 62 + "0a", "f" * 48 + "00000000000000ff"]
        row = {"timestamp": 0, "input_length": 32, "output_length": 1, "hash_ids": digests, "block_size": 16}
        (record,) = records(jsonl(tmp_path / "t.jsonl", row))
        assert record.prompt == BlockIds([10, 255], 16, 32, local=False)

    def test_coding_agents_with_sub_agents(self) -> None:
        """A sub-agent's times count from its start; its ids are its session's."""
        found = records(DATA / "claude_code" / "trace_0277.json")
        whole = json.loads((DATA / "claude_code" / "trace_0277.json").read_text())
        assert sum(record.prompt.tokens for record in found if isinstance(record.prompt, BlockIds)) == 2576410
        assert sum(record.output_tokens or 0 for record in found) == whole["totals"]["combined_tokens"]["output"]
        assert [record.time for record in found] == sorted(record.time or 0.0 for record in found)
        assert {record.session for record in found} == {"trace_0277"}
        assert all(isinstance(record.prompt, BlockIds) and record.prompt.local for record in found)
        second = found[1]
        assert (second.time, second.model) == (79.224, "claude-haiku-4-5-20251001")
        assert found[2].time == pytest.approx(79.224 + 6.0)
        assert second.duration == 2.16

    def test_lengths_that_fit_no_ids_are_broken_rows(self, tmp_path: Path) -> None:
        good = {"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]}
        reading = read([jsonl(tmp_path / "t.jsonl", good, good, {**good, "input_length": 5000})])
        assert len(list(reading)) == 2
        assert "5000 tokens do not fill 2 blocks of 512" in str(reading.report.first_broken[0])


class TestLengths:
    def test_azure(self, tmp_path: Path) -> None:
        path = tmp_path / "azure.csv"
        path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
        (record,) = records(path)
        assert (record.prompt, record.output_tokens) == (Length(374), 44)
        assert record.time == pytest.approx(1700158546.68059)

    def test_burstgpt(self, tmp_path: Path) -> None:
        path = tmp_path / "burst.csv"
        head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
        path.write_text(f"{head}\n5,ChatGPT,472,18,490,Conversation log\nx,ChatGPT,1,1,2,API log\n")
        reading = read([path])
        (record,) = list(reading)
        assert (record.prompt, record.output_tokens, record.time, record.model) == (Length(472), 18, 5.0, "ChatGPT")
        assert reading.report.broken == 1


class TestEngineLogs:
    def test_sglang(self) -> None:
        reading = read([DATA / "engine_logs" / "sglang_lines.txt"])
        assert list(reading) == []
        samples = reading.report.samples
        assert len(samples) == 10
        assert (samples[1].new, samples[1].cached, samples[1].rate) == (8192, 291, pytest.approx(0.0276))
        assert samples[-1].time is not None
        assert samples[-1].time - (samples[-2].time or 0) == 0

    def test_vllm(self) -> None:
        reading = read([DATA / "engine_logs" / "vllm_lines.txt"])
        (request,) = list(reading)
        assert request.prompt == Text(
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nTell me a joke<|im_end|>\n<|im_start|>assistant\n"
        )
        assert [(sample.tier, sample.rate) for sample in reading.report.samples[-2:]] == [("gpu", 0.0), ("cpu", 0.9)]

    def test_vllm_v1(self, tmp_path: Path) -> None:
        path = tmp_path / "vllm.log"
        path.write_text(
            "INFO 08-11 10:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 100.0 tokens/s, Avg generation "
            "throughput: 5.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit "
            "rate: 64.4%\n"
        )
        reading = read([path])
        assert list(reading) == []
        assert reading.report.samples[0].rate == pytest.approx(0.644)

    def test_llama_server(self) -> None:
        """73,355 of the 73,450 tokens of a prompt were kept in its slot."""
        (record,) = records(DATA / "engine_logs" / "llamacpp_lines.txt")
        assert (record.prompt, record.reported) == (Length(73450), Reported(73450, 73355, 0))


class TestFiles:
    rows = (json.dumps({"prompt": "a", "time": 2}) + "\n" + json.dumps({"prompt": "b", "time": 1}) + "\n").encode()

    @pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
    def test_compressed_and_sorted(self, tmp_path: Path, pack: Any) -> None:
        (tmp_path / "log").write_bytes(pack(self.rows))
        assert [record.prompt for record in records(tmp_path / "log")] == [Text("b"), Text("a")]

    def test_zstd_frames_after_one_another(self, tmp_path: Path) -> None:
        (tmp_path / "log").write_bytes(zstandard.ZstdCompressor().compress(self.rows) * 2)
        assert len(records(tmp_path / "log")) == 4

    def test_a_cut_gzip_gives_what_it_has(self, tmp_path: Path) -> None:
        rows = b"".join(json.dumps({"prompt": random.Random(n).random()}).encode() + b"\n" for n in range(5000))
        rows = rows.replace(b": 0", b': "0').replace(b"}", b'"}')
        (tmp_path / "log").write_bytes(gzip.compress(rows)[:-2000])
        reading = read([tmp_path / "log"])
        assert 1000 < len(list(reading)) < 5000
        assert reading.report.broken == 1

    @pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
    def test_a_damaged_file_is_one_line(self, tmp_path: Path, pack: Any) -> None:
        whole = bytearray(pack(b"".join(json.dumps({"prompt": str(n)}).encode() + b"\n" for n in range(60_000))))
        whole[len(whole) // 2 : len(whole) // 2 + 40] = bytes(40)
        (tmp_path / "log").write_bytes(whole)
        reading = read([tmp_path / "log"], ordered=False)
        # A zstd frame may give nothing at all before the damage is found.
        with suppress(ReadError):
            assert len(list(reading)) < 60_000
        assert reading.report.broken >= 1 or reading.report.good == 0

    def test_numbers_beyond_all_measure_are_broken_rows(self, tmp_path: Path) -> None:
        rows: list[Any] = [{"prompt": "a", "time": 10**400}, {"prompt": "a", "time": -1e30}, {"prompt": "b"}]
        rows += [{"hash_ids": [1], "input_length": 10**30}, {"prompt": [2**70]}]
        reading = read([jsonl(tmp_path / "log", *rows)])
        assert Text("b") in [record.prompt for record in reading]
        assert reading.report.broken == 4

    def test_a_table_with_a_cell_too_long(self, tmp_path: Path) -> None:
        path = tmp_path / "azure.csv"
        path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,{'3' * 200_000}\n1,2,3\n")
        reading = read([path])
        assert len(list(reading)) == 1
        assert reading.report.broken == 1

    def test_standard_input(self) -> None:
        program = "from pageinn.traffic import read; print(sum(1 for _ in read(['-'])))"
        done = subprocess.run([sys.executable, "-c", program], input=self.rows, capture_output=True, check=True)
        assert done.stdout.strip() == b"2"

    def test_many_files_are_merged_by_time(self, tmp_path: Path) -> None:
        paths = [
            jsonl(tmp_path / f"{n}.jsonl", *[{"prompt": str(t), "time": t} for t in range(n, 9, 3)]) for n in (2, 0, 1)
        ]
        assert [record.time for record in read(paths)] == [float(t) for t in range(9)]
        assert [record.time for record in read(paths, ordered=False)][:2] == [2.0, 5.0]

    def test_broken_rows_are_counted_shown_and_skipped(self, tmp_path: Path) -> None:
        lines = [
            b'{"prompt": "a"}',
            b"{",
            b"\xff\xfe",
            b'{"x": 1}',
            b'{"messages": []}',
            b'{"messages": [{"role": 1}]}',
        ]
        lines += [b'{"prompt": 3}', b"[" * 5000, b'{"prompt": "b", "time": "noon"}', b'{"prompt": "c"}']
        (tmp_path / "log").write_bytes(b"\n".join(lines))
        reading = read([tmp_path / "log"])
        assert [record.prompt for record in reading] == [Text("a"), Text("c")]
        assert (reading.report.good, reading.report.broken) == (2, 8)
        assert [broken.line for broken in reading.report.first_broken] == [2, 3, 4, 5, 6]
        assert "skipped 3 more" in "\n".join(reading.report.lines())

    def test_no_good_row_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "log").write_text('{"x": 1}\n')
        with pytest.raises(ReadError, match=r"log: not one row could be read: .*log:1: no known format.*--format"):
            records(tmp_path / "log")
        (tmp_path / "empty").write_text("")
        with pytest.raises(ReadError, match="not one row"):
            records(tmp_path / "empty")
        with pytest.raises(ReadError, match="No such file"):
            records(tmp_path / "missing")
        with pytest.raises(ReadError, match="unknown format 'x'"):
            records(tmp_path / "log", "x")

    @pytest.mark.parametrize(
        ("format", "file"),
        [
            ("coding-agent", "claude_code/trace_0026.json"),
            ("block-trace", "mooncake/conversation_200.jsonl"),
            ("agent-trace", "miniswe/inputs.jsonl"),
            ("anthropic", "anthropic_cache/test_prompt_cache.yaml"),
            ("engine-log", "engine_logs/llamacpp_lines.txt"),
        ],
    )
    def test_forcing_the_right_format_changes_nothing(self, format: str, file: str) -> None:
        assert records(DATA / file, format) == records(DATA / file)

    def test_forcing_a_wrong_format_is_an_error_of_rows(self) -> None:
        with pytest.raises(ReadError, match="not one row"):
            records(DATA / "claude_code" / "trace_0026.json", "sharegpt")


@given(st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 5)), st.text(max_size=3)), max_size=30))
def test_sorting_on_disk_equals_sorting_in_memory(rows: list[tuple[int | None, str]]) -> None:
    given_records = [Record("log", n, Text(text), time) for n, (time, text) in enumerate(rows)]
    spilled = list(in_time_order(given_records, memory=1200))
    assert spilled == list(in_time_order(given_records))
    times = [record.time for record in spilled if record.time is not None]
    assert times == sorted(times)
    assert sorted(record.line for record in spilled) == list(range(len(rows)))


KEYS = [
    "messages", "prompt", "input", "conversations", "hash_ids", "requests", "tools", "role", "content", "body",
    "timestamp", "usage", "response", "input_length", "block_size", "in", "t",
    "attributes", "resourceSpans", "observations", "type", "startTime", "call_type", "events", "metadata",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(rows=st.lists(JSON, min_size=1, max_size=6))
def test_no_row_is_fatal(tmp_path: Path, rows: list[Any]) -> None:
    """Whatever JSON a row holds, it is read or it is counted as broken; the good one after it is read."""
    reading = read([jsonl(tmp_path / "log", {"prompt": "first"}, *rows, {"prompt": "good"})], ordered=False)
    assert list(reading)[-1].prompt == Text("good")
    assert reading.report.good + reading.report.broken == len(rows) + 2


def last_line(name: str) -> str:
    return (DATA / name).read_text().splitlines()[-1]
