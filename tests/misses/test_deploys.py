"""A line for each deploy: what counts as one, what does not, and what is remembered across restarts."""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path

import pytest

from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.memory.tokens import pack
from pageinn.misses.deploys import Deploys
from pageinn.misses.heads import LATEST, LEAST, MOST_HEADS, Heads, head_of
from pageinn.misses.record import Asked, Record

RULES = "\n".join(f"Rule {word}: be kind to {word} and say so." for word in ("alders", "beeches", "cedars", "elms"))
OTHER = "\n".join(f"You add {word} to the list of things to buy." for word in ("bread", "milk", "salt", "tea"))
numbers = count()


def prompt(system: str, user: str = "Why?") -> str:
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def text(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


class Watched:
    """A process: deploys and their lines."""

    def __init__(self, caplog: pytest.LogCaptureFixture, file: Path | None = None, show_text: bool = True) -> None:
        caplog.set_level(logging.INFO, logger="pageinn")
        self._caplog = caplog
        self.deploys = Deploys(text, lambda: 1000.0 + next(numbers), file, show_text)

    def ask(self, rendered: str, times: int = LEAST, scope: Scope = DEFAULT) -> None:
        for _ in range(times):
            asked = Asked("r", scope, pack(map(ord, rendered)), "", True)
            self.deploys.see(Record(next(numbers), asked, 0.0, 0))
            # Requests come one after the other; those that come at once are passed over.
            self.deploys._reader.submit(int).result()

    def close(self) -> list[str]:
        self.deploys.close()
        lines = [record.getMessage() for record in self._caplog.records if record.name.endswith("deploys")]
        self._caplog.clear()
        return lines


def test_a_head_ends_before_the_first_message() -> None:
    head = head_of(prompt(RULES))
    assert head is not None
    assert head.text == f"<|im_start|>system\n{RULES}<|im_end|>\n<|im_start|>user\n"
    assert head_of("A text without parts. " * 9) is None
    assert head_of("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n") is None


def test_a_changed_line_is_one_deploy(caplog) -> None:
    """A line when the head is first seen, one when it changes, with the line that differs, and no more."""
    process = Watched(caplog)
    process.ask(prompt(RULES), 2 * LEAST)
    process.ask(prompt(RULES.replace("cedars", "cypresses")), 2 * LATEST)
    first, second = process.close()
    assert first.endswith("which is like none before")
    assert "line 4 differs: 'Rule cypresses: be kind to cypresses and say so.' was 'Rule cedars" in second
    told = list(process.deploys.told)
    assert (told[1].before, told[1].line) == (told[0].fingerprint, 4)


def test_clocks_and_numbers_are_no_deploys(caplog) -> None:
    """Field case H3 is a fault, and told of as one; it is not a deploy with each request."""
    process = Watched(caplog)
    for minute in range(40):
        process.ask(prompt(f"It is 12:{minute:02}.\n{RULES}"), 1)
    assert len(process.close()) == 1


def test_two_variants_side_by_side_are_no_deploys(caplog) -> None:
    """Field case H6: half of the requests each, so neither takes the other's place."""
    process = Watched(caplog)
    for _ in range(LATEST):
        process.ask(prompt(RULES), 1)
        process.ask(prompt(f"Do not think aloud.\n{RULES}"), 1)
    assert process.close() == []


def test_a_name_in_each_head_is_no_deploy(caplog) -> None:
    process = Watched(caplog)
    for number in range(50):
        process.ask(prompt(f"You help {'abcdefghij'[number % 10]}{'klmno'[number // 10]}.\n{RULES}"), 1)
    assert process.close() == []


def test_applications_and_tenants_are_apart(caplog) -> None:
    """Two applications take turns, and another tenant has the first one's prompt: three heads, none of them changed."""
    process = Watched(caplog)
    for _ in range(LATEST):
        process.ask(prompt(RULES), 1)
        process.ask(prompt(OTHER), 1)
        process.ask(prompt(RULES), 1, Scope("alice"))
    lines = process.close()
    assert len(lines) == 3
    assert all("like none before" in line for line in lines)
    assert sum("tenant alice" in line for line in lines) == 1


def test_a_restart_remembers(caplog, tmp_path: Path) -> None:
    file = tmp_path / "heads.json"
    for system, words in (
        (RULES, "like none before"),
        (RULES, "as before the restart"),
        (f"{RULES}\nRule yews: too.", "line 6 differs"),
        (f"{RULES}\nRule yews: too.", "as before the restart"),
    ):
        process = Watched(caplog, file)
        process.ask(prompt(system), 3 * LEAST)
        (line,) = process.close()
        assert words in line
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 2, "heads": []}', '{"version": 1}', "\x00"])
def test_a_file_that_cannot_be_read_is_named_and_replaced(caplog, tmp_path: Path, content: str) -> None:
    file = tmp_path / "heads.json"
    file.write_text(content)
    process = Watched(caplog, file)
    process.ask(prompt(RULES))
    warning, line = process.close()
    assert warning.startswith(f"{file}: prompt heads of earlier deploys cannot be read")
    assert "like none before" in line
    assert Watched(caplog, file).close() == []


def test_text_is_masked_unless_it_is_shown(caplog) -> None:
    process = Watched(caplog, show_text=False)
    process.ask(prompt(RULES))
    process.ask(prompt(RULES.replace("cedars", "cypresses")), LATEST)
    assert "'Xxxx xxxxxxxxx: xx xxxx xx xxxxxxxxx xxx xxx xx.' was 'Xxxx xxxxxx:" in process.close()[1]


def test_a_prompt_that_cannot_be_read_keeps_no_other_from_it(caplog) -> None:
    process = Watched(caplog)
    process.ask(prompt(f'{RULES}\n"parameters": {{"type": ' + "[" * 5000), LEAST)

    def decode(tokens: list[int]) -> str:
        raise ValueError(len(tokens))

    process.deploys._decode = decode
    process.ask(prompt(OTHER), 1)
    process.deploys._decode = text
    process.ask(prompt(OTHER), LEAST)
    first, broken, second = process.close()
    assert "like none before" in first
    assert broken == "what a prompt of tenant default begins with cannot be read"
    assert "like none before" in second


def test_memory_is_bounded() -> None:
    heads = Heads()
    for number in range(5 * MOST_HEADS):
        head = head_of(prompt(" ".join(f"{chr(97 + number % 26)}{chr(97 + number // 26)}{word}" for word in "xyz")))
        assert head is not None
        heads.see("default", head)
    assert len(heads._heads) <= MOST_HEADS
