"""`pageinn serve` in a process of its own, for tests of all that asks a server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families


class Server:
    """A `pageinn serve` process on a free port, seen from outside."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "pageinn.cli", "serve", "--port", "0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self.url = self._wait_until_ready()
        # A pipe that nobody reads would stop the server once it is full.
        self._reader = threading.Thread(target=self._read_on, daemon=True)
        self._reader.start()
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def _wait_until_ready(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"Ready in .* on (http://\S+)", line):
                return found[1]
        raise AssertionError(f"the server ended with {self.process.wait()}: {''.join(self.log)}")

    def _read_on(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one sample whose labels include these; None if there is no such sample."""
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                if sample.name == f"pageinn:{name}" and labels.items() <= sample.labels.items():
                    return sample.value
        return None

    def blocks(self) -> dict[str, float]:
        """Blocks by state, all of one moment."""
        return {
            sample.labels["state"]: sample.value
            for family in text_string_to_metric_families(self.http.get("/metrics").text)
            for sample in family.samples
            if sample.name == "pageinn:kv_blocks"
        }

    def complete(self, prompt: object, **fields: object) -> dict[str, Any]:
        """A greedy completion's JSON."""
        body = {"prompt": prompt, "temperature": 0, **fields}
        got = self.http.post("/v1/completions", json=body)
        assert got.status_code == 200, got.text
        return got.json()

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process and wait; returns its exit code."""
        self.process.send_signal(sig)
        code = self.process.wait(timeout=60)
        self.http.close()
        return code


@contextmanager
def served_pageinn(*flags: str) -> Iterator[str]:
    """The URL of a server that ends with the block."""
    made = Server(*flags)
    try:
        yield made.url
    finally:
        assert made.stop() == 0, "".join(made.log)
