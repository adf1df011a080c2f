"""`pageinn chat`: against the real server through pipes, and in its own process through a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

CHAT = [sys.executable, "-m", "pageinn.cli", "chat"]
SYSTEM = "You are a parrot on a ship. You repeat what matters, and you know the winds and the stars."

#: A terminal that the head of a session opens is the session's, so that Ctrl-C on it comes as a signal.
TAKE_TERMINAL = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"


def chat(*args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CHAT, *args], input=text, capture_output=True, text=True, timeout=120, check=False)


def said(server, *messages: dict[str, str]) -> str:
    """What the server answers, asked without the command."""
    body = {"messages": list(messages), "temperature": 0, "max_tokens": 12}
    return server.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]


def test_a_conversation_through_pipes(server) -> None:
    """Answers are on standard output and nothing else is; a second turn hits the first, a reset forgets."""
    system = {"role": "system", "content": SYSTEM}
    first, second, third = ({"role": "user", "content": line} for line in ("I am Ada.", "Who am I?", "Good day."))
    answers = [said(server, system, first)]
    answers.append(said(server, system, first, {"role": "assistant", "content": answers[0]}, second))
    answers.append(said(server, system, third))
    assert server.http.post("/reset_prefix_cache").status_code == 200
    flags = ("--url", server.url + "/v1", "--system", SYSTEM, "--temperature", "0", "--max-tokens", "12")
    result = chat(*flags, text="I am Ada.\n\n  Who am I?\n/reset\nGood day.\n/exit\nnever said\n")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "".join(f"{answer}\n" for answer in answers)
    costs = re.findall(
        r"\[(\d+) of (\d+) prompt tokens cached, first token after \d+\.\d\d s, (\d+) tokens", result.stderr
    )
    assert len(costs) == 3
    assert costs[0][0] == "0"
    assert int(costs[1][0]) > int(costs[0][1]), "the first turn's prompt and answer"
    assert 0 < int(costs[2][0]) < int(costs[0][1]), "the system's words"
    assert "a new conversation" in result.stderr


def test_a_turn_that_fails_is_taken_back_and_the_talk_goes_on(server) -> None:
    result = chat("--url", server.url, "--temperature", "0", "--max-tokens", "12", text="wind " * 5000 + "\nHi.\n")
    assert result.returncode == 0
    assert "[error: the prompt has 50" in result.stderr
    assert result.stdout == f"\n{said(server, {'role': 'user', 'content': 'Hi.'})}\n"


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--url", "http://127.0.0.1:9"], 1, "cannot reach http://127.0.0.1:9"),
        (["--url", "nonsense"], 1, "cannot reach nonsense"),
        (["no-such-file.gguf"], 1, "no-such-file.gguf"),
        (["model.gguf", "--url", "http://127.0.0.1:9", "--block-size", "8"], 2, "leave out model, block-size"),
    ],
)
def test_nobody_to_talk_to(args: list[str], code: int, words: str) -> None:
    result = chat(*args)
    assert result.returncode == code
    assert words in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


class Terminal:
    """The other end of a program's terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def shows(self, words: str, seconds: float) -> bool:
        """Read until these words; False once nothing has come for so long."""
        while words not in self.seen:
            ready, _, _ = select.select([self._fd], [], [], seconds)
            if not ready:
                return False
            try:
                self.seen += os.read(self._fd, 4096).decode(errors="replace")
            except OSError as error:  # the program has ended
                raise AssertionError(self.seen) from error
        return True

    def until(self, words: str) -> str:
        """Read until these words; what came before them since the last call."""
        assert self.shows(words, 60), self.seen
        before, self.seen = self.seen.split(words, 1)
        return before


@contextmanager
def terminal(*args: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, *CHAT, *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(ours), process
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_terminal_with_the_engine_in_the_same_process() -> None:
    """Ctrl-C ends an answer and not the program; what was said before it stays said."""
    with terminal("--kv-cache-memory-bytes", "32MiB", "--temperature", "0", "--max-tokens", "600") as (screen, process):
        screen.until("> ")
        screen.type("Write a very long story about a lighthouse.\n")
        screen.until("lighthouse.")
        screen.until("the ")
        screen.type("\x03")
        screen.until("[interrupted")
        screen.until("> ")
        screen.type("half a line")
        screen.until("half a line")
        # readline misses a signal that comes in the instant before it waits for the next key, which may last on a busy
        # machine: whoever sees nothing presses again.
        for _ in range(5):
            time.sleep(0.2)
            screen.type("\x03")
            if screen.shows("Ctrl-C ends an answer]", 5):
                break
        screen.until("Ctrl-C ends an answer]")
        screen.until("> ")
        screen.type("Say hi.\n")
        cached = int(re.search(r"\[(\d+) of \d+$", screen.until(" prompt tokens cached"))[1])
        assert cached > 40, "the interrupted turn was computed and kept"
        screen.until("> ")
        screen.type("/exit\n")
        assert process.wait(timeout=30) == 0
