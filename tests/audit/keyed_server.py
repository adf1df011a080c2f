"""`pageinn serve` with two tenants and an admin."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from served_pageinn import served_pageinn

KEYS = """\
[tenants.alice]
keys = ["sk-alice"]
[tenants.bob]
keys = ["sk-bob"]
[tenants.operations]
keys = ["sk-operations"]
admin = true
"""


def keyed_server(folder: Path, model: Path, *flags: str) -> AbstractContextManager[str]:
    """A server's URL. Its file of keys lies in `folder`."""
    keys = folder / "keys.toml"
    keys.write_text(KEYS)
    return served_pageinn(str(model), "--api-keys", str(keys), *flags)
