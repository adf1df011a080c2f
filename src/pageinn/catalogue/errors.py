"""What the catalogue refuses."""

from __future__ import annotations


class CatalogueError(ValueError):
    """A model, accelerator or dtype that is not known; the message is one line that names it and the way out."""


def known(kind: str, name: str, names: list[str]) -> CatalogueError:
    """The error for a name that is in no table, with what the table has."""
    return CatalogueError(f"{kind} {name!r} is not known (known: {', '.join(names)})")
