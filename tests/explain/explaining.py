"""How a log of records is explained: the type of the fixture `explain`."""

from __future__ import annotations

from collections.abc import Callable

from pageinn.explain.analysis import Explained
from pageinn.traffic import Record

Explain = Callable[[list[Record]], Explained]
