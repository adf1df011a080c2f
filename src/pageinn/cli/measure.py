"""`pageinn measure LOG`."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from tqdm import tqdm

from pageinn.catalogue.errors import CatalogueError
from pageinn.catalogue.memory import growing_token_bytes
from pageinn.catalogue.models import find_model
from pageinn.measure.collect import MeasureError, Settings, collect
from pageinn.measure.html import page
from pageinn.measure.summary import Asked, summarise
from pageinn.measure.terminal import report as terminal_report
from pageinn.model.config import ModelError
from pageinn.text.template import TemplateError
from pageinn.text.tokenizer import TokenizerError
from pageinn.traffic.reading import read
from pageinn.traffic.rendering import open_renderer
from pageinn.traffic.report import ReadError

_ERRORS = (CatalogueError, MeasureError, ModelError, OSError, ReadError, TemplateError, TokenizerError)


def measure_command(args: Namespace) -> int:
    """Exit code: 0, 1 for a log or model that cannot be read, 2 for wrong usage."""
    if args.cache_memory and args.kv_model is None:
        print("pageinn: --cache-memory needs --kv-model, whose tokens' bytes it counts", file=sys.stderr)
        return 2
    settings = Settings(
        block_size=args.block_size,
        answers=args.answers,
        isolate=not args.share_tenants,
        prefill_rate=args.prefill_rate,
        decode_rate=args.decode_rate,
    )
    try:
        token_bytes = _token_bytes(args)
        renderer = open_renderer(args.model)
        reading = read(args.log, args.format, ordered=False)
        shown = tqdm(reading, desc="Reading", unit=" requests", leave=False, disable=None, file=sys.stderr)
        log = collect(iter(shown), renderer, settings, reading.report)
        sizes = [*args.cache_tokens, *(int(size / (token_bytes or 1.0)) for size in args.cache_memory)]
        asked = Asked(settings, args.target, tuple(sizes), token_bytes)
        found = summarise(log, reading.report, list(renderer.assumed), asked)
        if args.html is not None:
            args.html.write_text(page(found), encoding="utf-8")
    except _ERRORS as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1, ensure_ascii=False) if args.json else terminal_report(found))
    return 0


def _token_bytes(args: Namespace) -> float | None:
    """Bytes of one more token in the cache of the model that is named."""
    return None if args.kv_model is None else growing_token_bytes(find_model(args.kv_model), args.kv_cache_dtype)
