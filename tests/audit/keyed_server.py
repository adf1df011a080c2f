"""`pageinn serve` with two tenants and an admin."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEYS = """\
[tenants.alice]
keys = ["sk-alice"]
[tenants.bob]
keys = ["sk-bob"]
[tenants.operations]
keys = ["sk-operations"]
admin = true
"""


@contextmanager
def keyed_server(folder: Path, model: Path, *flags: str) -> Iterator[str]:
    """A server on a free port; gives its URL. Its file of keys lies in `folder`."""
    keys = folder / "keys.toml"
    keys.write_text(KEYS)
    command = [sys.executable, "-m", "pageinn.cli", "serve", str(model), "--port", "0", "--api-keys", str(keys)]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = next(found[1] for line in process.stderr if (found := re.search(r"Ready in .* on (http://\S+)", line)))
    # A pipe that nobody reads would stop the server once it is full.
    reader = threading.Thread(target=process.stderr.read, daemon=True)
    reader.start()
    try:
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)
        reader.join()
        process.stderr.close()
