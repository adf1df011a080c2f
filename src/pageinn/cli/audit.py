"""`pageinn audit`: what one tenant can find out about another."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from contextlib import ExitStack, closing
from random import SystemRandom

from tqdm import tqdm

from pageinn.audit.client import AuditError, Caller, Tenant
from pageinn.audit.report import Report, as_json, as_text, report
from pageinn.audit.timing import arms, count, measure, patiently, words_for
from pageinn.cli.audit_flags import VARIABLES
from pageinn.cli.connection import base_of

#: Not 1, which says that there is a leak.
TROUBLE = 2


def audit_command(args: Namespace) -> int:
    """Measure and print; returns the exit code, as the report has it, or TROUBLE."""
    try:
        found = _timing(args)
    except AuditError as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return TROUBLE
    print(json.dumps(as_json(found), indent=2) if args.json else as_text(found))
    return found.code


def _timing(args: Namespace) -> Report:
    """Raises AuditError."""
    url = base_of(args.server)
    keys = {name: getattr(args, name) or os.environ.get(variable) for name, variable in VARIABLES.items()}
    # Prompts must differ from those of every run before: no seed.
    rng = SystemRandom()
    with ExitStack() as stack:

        def tenant(key: str | None, salt: str | None = None) -> Tenant:
            return stack.enter_context(closing(Tenant(url, Caller(key, salt))))

        a, b = tenant(keys["key_a"], args.salt_a), tenant(keys["key_b"], args.salt_b)
        operator = None if keys["key_admin"] is None else tenant(keys["key_admin"])
        model = args.model or patiently(a.model)
        words = words_for(model, a, args.tokens, rng)
        chosen = arms(model, a, b, operator)
        bar = stack.enter_context(
            tqdm(total=count(chosen, args.pairs), desc="Timing", unit="pair", disable=None, leave=False)
        )
        return report(url, model, measure(chosen, args.pairs, words, rng, bar.update))
