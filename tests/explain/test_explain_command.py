"""`pageinn explain` and `pageinn diff` as they are called."""

from __future__ import annotations

import json
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from faulty_logs import clock, conversation, instructions, rows, uuid_of

from pageinn.cli.main import main
from pageinn.memory.tokens import unpack
from pageinn.traffic import Chat, open_renderer

SECRET = "Project Nightjar"


def chats(fault: bool, turns: int = 8, seed: int = 1) -> list[Chat]:
    rng = random.Random(seed)
    grown = conversation(rng, turns, system=f"{SECRET}.\n{instructions()}")
    if not fault:
        return grown
    head = [f"{SECRET}. Now {clock(k, 7):%H:%M:%S}, run {uuid_of(rng)}.\n{instructions()}" for k in range(turns)]
    return [
        Chat([{"role": "system", "content": text}, *chat.messages[1:]], [], {})
        for text, chat in zip(head, grown, strict=True)
    ]


def write(path: Path, found: list[Chat]) -> str:
    lines = [json.dumps({"model": "m", "messages": chat.messages, "timestamp": 7 * k}) for k, chat in enumerate(found)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_what_fixes_are_worth(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Priced by hand: computed tokens at 3 a million, cached ones at 0.3, prefilled at 1,000 a second."""
    rates = ["--price", "3", "--cached-price", "0.3", "--prefill-rate", "1000"]
    assert main(["explain", faulty, "--json", *rates]) == 0
    found = json.loads(capsys.readouterr().out)
    for name, key in (("as_logged", "hit_rate"), ("fixed", "hit_rate_fixed")):
        cached = found[key] * found["prompt_tokens"]
        computed = found["prompt_tokens"] - cached
        # The context that is moved gets a heading, so that fixed prompts are a little longer.
        close = {"rel": 0.01 if name == "fixed" else 1e-4}
        assert found["worth"]["cost"][name] == pytest.approx((3 * computed + 0.3 * cached) / 1e6, **close)
        assert found["worth"]["prefill_seconds"][name] == pytest.approx(computed / 1000, **close)
    assert main(["explain", faulty, *rates]) == 0
    text = capsys.readouterr().out
    assert "At 3 a million prompt tokens, and 0.3 a million cached ones, the prompts cost" in text
    assert max(map(len, text.splitlines())) <= 80
    assert main(["explain", faulty, "--cached-price", "1"]) == 2


@pytest.mark.parametrize("key", ["tenant", "model"])
def test_tenants_and_models_share_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    """Two of them ask the same: only the third and fourth request find anything, and nothing is at fault."""
    system = {"role": "system", "content": instructions()}
    rows = [
        {key: "ab"[k % 2], "messages": [system, {"role": "user", "content": f"{chr(65 + k)} please"}], "time": k}
        for k in range(4)
    ]
    path = tmp_path / "two.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["explain", str(path), "--json"]) == 0
    apart = json.loads(capsys.readouterr().out)
    assert main(["measure", str(path), "--json"]) == 0
    assert apart["hit_rate"] == pytest.approx(
        json.loads(capsys.readouterr().out)["reuse"]["aligned"]["share"], abs=1e-6
    )
    assert 0.45 < apart["hit_rate"] < 0.5
    assert apart["findings"] == []
    assert [note["kind"] for note in apart["notes"]] == (["other tenants"] if key == "tenant" else [])
    assert main(["explain", str(path), "--json", "--share-tenants"]) == 0
    together = json.loads(capsys.readouterr().out)["hit_rate"]
    assert 0.7 < together < 0.75 if key == "tenant" else together == apart["hit_rate"]


def test_a_fault_of_one_tenant_is_fixed_in_its_own_scope(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The written log keeps its tenants, so that it has the hit rate that was proved."""
    rng = random.Random(5)
    rows = []
    for k in range(12):
        head = f"Run {uuid_of(rng)}.\n" if k % 2 else ""
        system = {"role": "system", "content": head + instructions()}
        rows.append({"tenant": "ab"[k % 2], "messages": [system, {"role": "user", "content": f"{k}?"}], "time": k})
    path, fixed = tmp_path / "two.jsonl", tmp_path / "fixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["explain", str(path), "--json", "--fix", str(fixed)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [finding["kind"] for finding in found["findings"]] == ["id"]
    assert found["findings"][0]["requests"] == 5
    assert main(["explain", str(fixed), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["hit_rate"] == pytest.approx(found["hit_rate_fixed"])
    assert again["findings"] == []


@pytest.fixture
def faulty(tmp_path: Path) -> str:
    return write(tmp_path / "faulty.jsonl", chats(fault=True))


@pytest.fixture
def clean(tmp_path: Path) -> str:
    return write(tmp_path / "clean.jsonl", chats(fault=False))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_report_fits_a_terminal_and_masks_the_text(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", faulty)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "Nightjar" not in out
    assert "Xxxxxxx Xxxxxxxx" in out
    shown = run(capsys, "explain", faulty, "--show-text")[1]
    assert SECRET in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_json_is_the_same_each_time_and_masked(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", faulty, "--json")
    assert code == 0
    assert out == run(capsys, "explain", faulty, "--json")[1]
    assert "Nightjar" not in out
    report = json.loads(out)
    assert set(report) == {
        "version", "log", "requests", "families", "prompt_tokens", "median_prompt_tokens", "block_size", "assumed",
        "hit_rate", "hit_rate_fixed", "new_share", "turns", "masked", "findings", "notes",
    }  # fmt: skip
    assert (report["version"], report["requests"], report["families"], report["masked"]) == (1, 8, [8], True)
    (finding,) = report["findings"]
    assert set(finding) == {
        "kind", "detail", "part", "position", "requests", "parted", "values", "tokens", "hit_rate_before",
        "hit_rate_after", "fix", "written_by_fix", "tools_added", "tools_removed", "example", "shares",
    }  # fmt: skip
    assert (finding["kind"], finding["part"]) == ("id", {"kind": "system", "number": 1, "label": "system"})
    assert finding["example"]["later_request"] == f"{faulty}:2"
    assert report["hit_rate"] < 0.1
    assert report["hit_rate_fixed"] > 0.7


def test_each_request(faulty: str, clean: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a prompt is made of, what it shares with which earlier one, and why no more."""
    code, out, _ = run(capsys, "explain", clean, "--requests")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    rows = json.loads(run(capsys, "explain", clean, "--requests", "--json")[1])["each_request"]
    assert [row["what"] for row in rows] == ["new"] + ["goes on"] * 7
    assert [row["earlier"] for row in rows] == [""] + [f"{clean}:{k}" for k in range(1, 8)]
    for row in rows:
        assert row["tools"] == 0 < row["system"] < row["tokens"]
        # The rest is the template's.
        assert 0 <= row["tokens"] - row["system"] - row["messages"] < 30 + 0.03 * row["tokens"]
        assert row["shared"] <= row["tokens"]
    parted = json.loads(run(capsys, "explain", faulty, "--requests", "--json")[1])["each_request"]
    assert [row["what"] for row in parted] == ["new"] + ["id, system"] * 7


def test_fail_under(faulty: str, clean: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "explain", faulty, "--fail-under", "0.6")
    assert (code, err.startswith("pageinn: the hit rate")) == (3, True)
    assert run(capsys, "explain", clean, "--fail-under", "0.6")[0] == 0


def test_the_fixed_log_has_the_promised_rate(faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = tmp_path / "fixed.jsonl"
    promised = json.loads(run(capsys, "explain", faulty, "--json", "--fix", str(fixed))[1])["hit_rate_fixed"]
    again = json.loads(run(capsys, "explain", str(fixed), "--json")[1])
    assert again["hit_rate"] == pytest.approx(promised, abs=0.001)
    assert again["findings"] == []
    before = [json.loads(line) for line in Path(faulty).read_text().splitlines()]
    after = [json.loads(line) for line in fixed.read_text().splitlines()]
    assert [row["model"] for row in after] == ["m"] * 8
    for one, other in zip(before, after, strict=True):
        told = one["messages"][0]["content"].splitlines()[0]
        # Moved, not lost.
        for value in (told.split("Now ")[1][:8], told.split("run ")[1][:36]):
            assert value not in other["messages"][0]["content"]
            assert value in other["messages"][-1]["content"]
        assert one["messages"][1:-1] == other["messages"][1:-1]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("compared", [False, True])
def test_the_page_loads_nothing_and_escapes(
    faulty: str, clean: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], compared: bool
) -> None:
    page = tmp_path / "page.html"
    logs = ["--before", clean, "--after", faulty] if compared else [faulty]
    assert run(capsys, "explain", *logs, "--html", str(page), "--show-text")[0] == 0
    read = Page()
    read.feed(page.read_text())
    assert (read.loaded, read.open) == ([], [])
    assert SECRET in read.text
    assert ("fell by" in read.text) is compared
    run(capsys, "explain", *logs, "--html", str(page))
    assert SECRET not in page.read_text()


def test_a_fault_that_appeared(faulty: str, clean: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same conversation with and without: all of the fall is the fault's, and its place in the prompt is shown."""
    code, out, _ = run(capsys, "explain", "--before", clean, "--after", faulty)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    compared = json.loads(run(capsys, "explain", "--before", clean, "--after", faulty, "--json")[1])
    assert compared["change"] == pytest.approx(compared["change_by_traffic"] + compared["change_by_faults"], abs=1e-5)
    assert compared["change_by_faults"] < -0.6
    assert abs(compared["change_by_traffic"]) < 0.05
    assert [finding["kind"] for finding in compared["appeared"]] == ["id"]
    assert compared["gone"] == []
    back = json.loads(run(capsys, "explain", "--before", faulty, "--after", clean, "--json")[1])
    assert [finding["kind"] for finding in back["gone"]] == ["id"]


def test_short_conversations_are_not_to_be_blamed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """H7: a two-turn session compared with a long one: traffic, not a fault."""
    long = write(tmp_path / "long.jsonl", chats(fault=False, turns=12))
    short = write(tmp_path / "short.jsonl", chats(fault=False, turns=2, seed=2))
    compared: dict[str, Any] = json.loads(run(capsys, "explain", "--before", long, "--after", short, "--json")[1])
    assert compared["change"] < -0.2
    assert compared["change_by_faults"] == 0
    assert compared["appeared"] == compared["after"]["findings"] == []
    assert "Conversations are shorter: 12.0 requests each before, 2.0 now." in compared["verdict"]


def test_the_model_s_own_tokens(faulty: str, model_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the model's template the prompt begins as the model reads it; nothing is assumed."""
    report = json.loads(run(capsys, "explain", faulty, "--model", model_name, "--json")[1])
    assert report["assumed"] == []
    assert [finding["kind"] for finding in report["findings"]] == ["id"]
    assert 5 <= report["findings"][0]["position"]["tokens"] < 40


def test_token_ids(model_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the model whose ids they are, they are text again; without it there is nothing to read."""
    renderer = open_renderer(model_name)
    texts = [f"<|im_start|>system\nat {clock(k, 7):%H:%M:%S}\n{instructions()}<|im_end|>\n" for k in range(4)]
    log = tmp_path / "ids.jsonl"
    ids = [unpack(renderer.encode(text, False)) for text in texts]
    log.write_text("".join(json.dumps({"prompt_token_ids": one}) + "\n" for one in ids))
    report = json.loads(run(capsys, "explain", str(log), "--model", model_name, "--json")[1])
    assert report["prompt_tokens"] == sum(map(len, ids))
    assert [(finding["kind"], finding["part"]["kind"]) for finding in report["findings"]] == [("clock", "system")]
    assert run(capsys, "explain", str(log))[0] == 1


def test_two_prompts(faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "diff", f"{faulty}:1", f"{faulty}:5")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "Nightjar" not in out
    found = json.loads(run(capsys, "diff", f"{faulty}:1", f"{faulty}:5", "--json", "--show-text")[1])
    first = found["differences"][0]
    assert (first["kind"], first["part"]["kind"], first["blamed"]) == ("id", "system", True)
    assert found["shared_tokens"] < 30

    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text(rows()[0].input)
    other.write_text(rows()[1].input)
    grown = json.loads(run(capsys, "diff", str(one), str(other), "--json")[1])
    assert [difference["blamed"] for difference in grown["differences"]] == [False]
    assert grown["shared_tokens"] == grown["earlier"]["tokens"]
    assert "The same prompt." in run(capsys, "diff", str(one), str(one))[1]

    body = tmp_path / "body.json"
    body.write_text(Path(faulty).read_text().splitlines()[0])
    assert "The same prompt." in run(capsys, "diff", str(body), f"{faulty}:1")[1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["explain"], 2, "name a log"),
        (["explain", "--before", "a"], 2, "go together"),
        (["explain", "a", "--before", "a", "--after", "b"], 2, "name a log, or two"),
        (["explain", "--before", "a", "--after", "b", "--requests"], 2, "take one log"),
        (["explain", "/nowhere/log.jsonl"], 1, "/nowhere/log.jsonl"),
        (["explain", "LENGTHS"], 1, "nothing to explain"),
        (["explain", "LOG", "--model", "/nowhere/model.gguf"], 1, "/nowhere/model.gguf"),
        (["diff", "/nowhere/a", "/nowhere/b"], 1, "/nowhere/a"),
        (["diff", "LOG:1", "LOG:99"], 1, "line 99"),
        (["diff", "LOG", "LOG"], 1, "name one of them by its line"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], code: int, said: str, clean: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n")
    given = [one.replace("LOG", clean).replace("LENGTHS", str(lengths)) for one in arguments]
    found, _, err = run(capsys, *given)
    assert found == code
    assert err.startswith("pageinn: ")
    assert err.count("\n") == 1
    assert said in err


def test_a_broken_row_is_said_and_skipped(clean: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(clean)
    path.write_text(path.read_text() + '{"messages": 7}\n{broken\n')
    code, out, err = run(capsys, "explain", clean)
    assert code == 0
    assert out.startswith(clean[:20])
    assert "2 broken" in err
