"""Open models by name, from slices of their published config.json files."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from pageinn.catalogue.errors import known
from pageinn.catalogue.published import shape_of
from pageinn.catalogue.shape import Shape


def find_model(name: str) -> Shape:
    """A model of the catalogue, by its name there or its repository's name on the Hugging Face hub, in any case.

    Raises CatalogueError, with the names that are known, for another name.
    """
    for shape in models():
        if name.lower() in (shape.name, repository_of(shape).lower()):
            return shape
    raise known("model", name, [shape.name for shape in models()])


def repository_of(shape: Shape) -> str:
    """The repository's name on the hub, owner/name."""
    return shape.source.removeprefix("https://huggingface.co/").removesuffix("/blob/main/config.json")


@cache
def models() -> tuple[Shape, ...]:
    """The catalogue, in its order."""
    rows = json.loads((files("pageinn.catalogue") / "models.json").read_text())
    return tuple(
        shape_of(row["config"], row["name"], f"https://huggingface.co/{row['repository']}/blob/main/config.json")
        for row in rows
    )
