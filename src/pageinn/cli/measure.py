"""`pageinn measure LOG`."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from tqdm import tqdm

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

_ERRORS = (MeasureError, ModelError, OSError, ReadError, TemplateError, TokenizerError)


def measure_command(args: Namespace) -> int:
    """Exit code: 0, or 1 for a log or model that cannot be read."""
    settings = Settings(
        block_size=args.block_size,
        answers=args.answers,
        isolate=not args.share_tenants,
        prefill_rate=args.prefill_rate,
        decode_rate=args.decode_rate,
    )
    try:
        renderer = open_renderer(args.model)
        reading = read(args.log, args.format, ordered=False)
        shown = tqdm(reading, desc="Reading", unit=" requests", leave=False, disable=None, file=sys.stderr)
        log = collect(iter(shown), renderer, settings, reading.report)
        asked = Asked(settings, args.target, tuple(args.cache_tokens))
        found = summarise(log, reading.report, list(renderer.assumed), asked)
        if args.html is not None:
            args.html.write_text(page(found), encoding="utf-8")
    except _ERRORS as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1, ensure_ascii=False) if args.json else terminal_report(found))
    return 0
