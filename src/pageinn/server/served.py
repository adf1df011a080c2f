"""What one server serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pageinn.engine.client import EngineClient
from pageinn.misses.recorder import Recorder
from pageinn.text.template import ChatTemplate
from pageinn.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Served:
    """One model behind one engine.

    max_model_len: prompt and answer together, in tokens. created: when it was loaded, in seconds since 1970.
    cache_config: how the cache is set up, as the labels of the metric `pageinn:cache_config_info`.
    aliases: further names of the model.
    canonical_tools: whether tool schemas reach the template with their keys in one order.
    show_prompt_text: whether an admin sees text of prompts; else its form alone.
    prompt_heads: a file that keeps what prompts began with for the next start of the server.
    misses: records what requests find in the cache; None records nothing.
    """

    client: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate | None
    model_name: str
    max_model_len: int
    vocab_size: int
    created: int
    cache_config: Mapping[str, str]
    canonical_tools: bool = False
    aliases: tuple[str, ...] = ()
    show_prompt_text: bool = False
    prompt_heads: Path | None = None
    misses: Recorder | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a request may use; answers carry the first."""
        return (self.model_name, *self.aliases)
