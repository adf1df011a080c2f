"""Readers of other programs' logs and traces: whatever the format, a stream of records."""

from pageinn.traffic.reading import Reading, read
from pageinn.traffic.record import BlockIds, Chat, Length, Prompt, Record, Reported, Text, Tokens
from pageinn.traffic.rendering import Rendered, Renderer, open_renderer
from pageinn.traffic.report import BadRowError, Broken, ReadError, ReadReport, Sample

__all__ = [
    "BadRowError",
    "BlockIds",
    "Broken",
    "Chat",
    "Length",
    "Prompt",
    "ReadError",
    "ReadReport",
    "Reading",
    "Record",
    "Rendered",
    "Renderer",
    "Reported",
    "Sample",
    "Text",
    "Tokens",
    "open_renderer",
    "read",
]
