"""How a step's prompt tokens are shared out between prompts."""

from __future__ import annotations

from collections.abc import Sequence

#: A long prompt leaves this part of a step to prompts that came later, so that short ones need not wait for its end.
_FOR_OTHERS = 4
#: With so many prompts under way, another starts only if it is computed at once: each holds its blocks meanwhile.
MAX_UNDER_WAY = 2


def share(budget: int, remaining: Sequence[int], others: bool) -> list[int]:
    """Tokens for each prompt under way, in order of arrival, of a step's budget.

    others: whether some wait that could start; something is then left for them, if only a token. Of what the first
    leaves, the shortest get theirs first.
    """
    if not remaining:
        return []
    share_of_others = budget // _FOR_OTHERS if others or len(remaining) > 1 else 0
    grants = [min(remaining[0], budget - share_of_others)] + [0] * (len(remaining) - 1)
    left = budget - grants[0]
    if others:
        left -= share_of_others // 2
    for place in sorted(range(1, len(remaining)), key=lambda place: remaining[place]):
        grants[place] = min(remaining[place], left)
        left -= grants[place]
    return grants


def top_up(grants: list[int], remaining: Sequence[int], left: int) -> None:
    """Give what nobody else took to the prompts under way, in order."""
    for place, most in enumerate(remaining):
        more = min(most - grants[place], left)
        grants[place] += more
        left -= more
