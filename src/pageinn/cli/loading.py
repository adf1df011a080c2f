"""From the command line to a loaded model, for the commands that need one."""

from __future__ import annotations

import logging
import os
import time
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tqdm import tqdm

from pageinn.engine import build
from pageinn.engine.client import EngineClient
from pageinn.engine.config import EngineConfig
from pageinn.engine.messages import RefusedError
from pageinn.model.config import ModelError
from pageinn.scheduling.config import ConfigError
from pageinn.server.served import Served
from pageinn.store.disk import DiskCacheError
from pageinn.store.kv_store import StoreTooLargeError
from pageinn.text.template import TemplateError
from pageinn.text.tokenizer import TokenizerError

if TYPE_CHECKING:
    from pageinn.engine.engine import Engine

log = logging.getLogger("pageinn")

#: What can be wrong with what a person asked for; each says so in one line.
LOAD_ERRORS = (ConfigError, DiskCacheError, ModelError, RefusedError, StoreTooLargeError, TemplateError, TokenizerError)


class Loaded(NamedTuple):
    """A model that is ready to answer, and what it is in a person's words."""

    served: Served
    description: str


def load(args: Namespace) -> Loaded:
    """Load what the command line names and start its engine. Raises LOAD_ERRORS."""
    engine = _build(_config(args))
    served = Served(
        client=EngineClient(engine),
        tokenizer=engine.tokenizer,
        template=engine.template,
        model_name=engine.model_name,
        max_model_len=engine.max_model_len,
        vocab_size=engine.tokenizer.vocab_size,
        created=int(time.time()),
        cache_config=engine.cache_config,
    )
    return Loaded(served, engine.description)


def _config(args: Namespace) -> EngineConfig:
    """What was given on the command line; the rest keeps the engine's defaults."""
    given = {field.name: getattr(args, field.name) for field in fields(EngineConfig) if field.name in args}
    if "weights_cache" not in given:
        given["weights_cache"] = _users_folder()
    return EngineConfig(**given)


def _users_folder() -> Path | None:
    """Where packed weights are kept (XDG Base Directory Specification); None, and a line, for a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The specification has relative paths ignored.
        caches = Path(named) if Path(named).is_absolute() else Path("~/.cache").expanduser()
    except RuntimeError:
        log.warning("this user has no home folder, so packed weights are not kept; name one with --weights-cache")
        return None
    return caches / "pageinn" / "weights"


def _build(config: EngineConfig) -> Engine:
    with tqdm(desc="Loading", unit="B", unit_scale=True, leave=False, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return build(config, progress)
