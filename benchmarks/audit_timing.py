"""What `pageinn audit timing` finds on this machine: the default model, two tenants and an admin, default settings.

Flags after -- are those of `pageinn serve`. A busy machine makes it slower, and noisier within a tenant.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", default="400", help="pairs across tenants (400)")
    parser.add_argument("serve", nargs="*", help="flags of pageinn serve, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        keys.write_text(KEYS)
        serve = [sys.executable, "-m", "pageinn.cli", "serve", "--port", "0", "--api-keys", str(keys), *args.serve]
        server = subprocess.Popen(serve, stderr=subprocess.PIPE, text=True)
        try:
            return audit(server, args.pairs)
        finally:
            server.terminate()
            server.wait(timeout=60)


def audit(server: subprocess.Popen[str], pairs: str) -> int:
    assert server.stderr is not None
    url = next(found[1] for line in server.stderr if (found := re.search(r"Ready in .* on (http://\S+)", line)))
    # A pipe that nobody reads would stop the server once it is full.
    threading.Thread(target=server.stderr.read, daemon=True).start()
    keys = ["--key-a", "sk-alice", "--key-b", "sk-bob", "--key-admin", "sk-operations"]
    began = time.monotonic()
    code = subprocess.call([sys.executable, "-m", "pageinn.cli", "audit", "timing", url, *keys, "--pairs", pairs])
    print(f"exit code {code}, {time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
