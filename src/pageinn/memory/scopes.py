"""Scopes: who may read what.

A scope is named by the authenticated tenant and, inside it, by an optional salt. The fields are framed (a tuple of two
fields, never one joined string), so ("org_1", "2345") and ("org_12345", "") stay apart.
"""

from __future__ import annotations

from typing import NamedTuple


class Scope(NamedTuple):
    """Who a prefix belongs to. `salt` separates requests of one tenant from each other; None is the tenant's own."""

    tenant: str
    salt: str | None = None


#: Prefixes that every scope may read and only the operator may create. No tenant can be called by an empty name.
PUBLIC = Scope("", None)
#: The scope of requests on a server without keys.
DEFAULT = Scope("default", None)
