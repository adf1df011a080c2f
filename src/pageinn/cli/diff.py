"""`pageinn diff`: where two prompts part."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from pathlib import Path

from pageinn.explain.pair_report import compare_prompts, pair_json, pair_text
from pageinn.explain.rendering import Rendering
from pageinn.model.config import ModelError
from pageinn.text.template import TemplateError
from pageinn.text.tokenizer import TokenizerError
from pageinn.traffic import ReadError, Record, Text, open_renderer, read

_LINE = re.compile(r"(.+):(\d+)")


def diff_command(args: Namespace) -> int:
    """Print where two prompts part; returns the exit code: 1 for what cannot be read."""
    try:
        earlier, later = (_prompt(name, args.format) for name in args.prompts)
        found = compare_prompts(earlier, later, Rendering(open_renderer(args.model)))
    except (ReadError, ModelError, TokenizerError, TemplateError, OSError, UnicodeDecodeError) as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(pair_json(found, args.show_text), indent=2, ensure_ascii=False))
    else:
        print("\n".join(pair_text(found, args.show_text)))
    return 0


def _prompt(name: str, form: str | None) -> Record:
    """A request of a log, a request body, or a text."""
    path = Path(name)
    line = _LINE.fullmatch(name)
    if line and not path.exists():
        for record in read([line[1]], form, ordered=False):
            if record.line == int(line[2]):
                return record
        raise ReadError(f"{line[1]}: no request was read from line {line[2]}")
    text = sys.stdin.read() if name == "-" else path.read_text(encoding="utf-8")
    if form is None and not text.lstrip().startswith("{"):
        return Record(name, 1, Text(text))
    if name == "-":
        raise ReadError("-: a request body is read from a file, not from standard input")
    records = list(read([name], form, ordered=False))
    if len(records) != 1:
        raise ReadError(f"{name}: {len(records)} requests; name one of them by its line, as {name}:{records[0].line}")
    return records[0]
