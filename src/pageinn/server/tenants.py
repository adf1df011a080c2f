"""Tenants and their keys: a TOML file that says whose each key is, read again on demand.

[tenants.alice]
keys = ["sk-alice-1"]

min_share = 0.2
max_share = 0.5
weight = 2

[tenants.operations]
key_sha256 = ["<64 hex digits: sha256 of the key>"]
admin = true

[routes."/v1/completions"]
share = false
"""

from __future__ import annotations

import hmac
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from pageinn.engine.messages import TenantRules
from pageinn.memory.scopes import DEFAULT
from pageinn.memory.shares import Share, check_shares

_FIELDS = ("keys", "key_sha256", "admin", "share", "min_share", "max_share", "weight")
#: The routes that may be left out of reuse.
SHARING_ROUTES = ("/v1/chat/completions", "/v1/completions")
_MOST_WEIGHT = 1000.0
_DIGEST_BYTES = 32


class KeysError(ValueError):
    """The file of keys cannot be used; one line names the file and the entry, never a key."""


class Tenant(NamedTuple):
    """Who asks. An admin may also reset, publish and inspect the cache. share: whether its prompts may be reused."""

    name: str
    admin: bool
    share: bool = True


#: Who everybody is on a server without keys.
ANYONE = Tenant(DEFAULT.tenant, admin=True)


class _Key(NamedTuple):
    digest: bytes
    tenant: Tenant


class _Contents(NamedTuple):
    keys: tuple[_Key, ...]
    rules: Mapping[str, TenantRules]
    unshared_routes: frozenset[str]


class Keyring:
    """The keys of a file. Raises KeysError if the file is bad."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._contents = _read(path)

    def reload(self) -> None:
        """Take the file as it is now. Raises KeysError, and keeps what it has, if the file is bad."""
        self._contents = _read(self._path)

    @property
    def num_tenants(self) -> int:
        """How many tenants have keys."""
        return len(self._contents.rules)

    @property
    def rules(self) -> Mapping[str, TenantRules]:
        """Each tenant's share of the cache and weight."""
        return self._contents.rules

    def reuses(self, tenant: str) -> bool:
        """Whether prompts of this tenant may be reused; one without keys has none."""
        return any(key.tenant.share for key in self._contents.keys if key.tenant.name == tenant)

    def shares(self, path: str) -> bool:
        """Whether what is asked on a route may be reused."""
        return path not in self._contents.unshared_routes

    def tenant_of(self, key: bytes) -> Tenant | None:
        """Whose key this is, or None. Takes the same time whichever key it is, and if it is none."""
        digest = sha256(key).digest()
        found = None
        for known in self._contents.keys:
            if hmac.compare_digest(known.digest, digest):
                found = known.tenant
        return found


def _read(path: Path) -> _Contents:
    try:
        data = tomllib.loads(path.read_text("utf-8"))
        keys = _keys(data)
        rules = {name: _rules(table, f"tenants.{name}") for name, table in data["tenants"].items()}
        check_shares({name: rule.share for name, rule in rules.items()})
        return _Contents(keys, rules, _unshared_routes(data.get("routes", {})))
    except OSError as error:
        raise KeysError(f"cannot read the keys in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KeysError(f"{path} is not UTF-8: byte {error.start} is wrong") from error
    except RecursionError as error:
        raise KeysError(f"{path} is nested too deeply") from error
    except ValueError as error:  # of tomllib, or what is said below
        raise KeysError(f"{path}: {error}") from error


def _keys(data: dict[str, Any]) -> tuple[_Key, ...]:
    tables = data.get("tenants")
    if not set(data) <= {"tenants", "routes"} or not isinstance(tables, dict) or not tables:
        raise ValueError(
            "a file of keys holds tables [tenants.NAME], at least one, perhaps [routes.PATH], and nothing else"
        )
    owners: dict[bytes, str] = {}
    keys = []
    for name, table in tables.items():
        for digest, place in _digests(name, table):
            if digest in owners:
                raise ValueError(f"{place} is a key that {owners[digest]} has already; give each key once")
            owners[digest] = f"tenants.{name}"
            keys.append(_Key(digest, Tenant(name, table.get("admin", False), table.get("share", True))))
    return tuple(keys)


def _digests(name: str, table: Any) -> list[tuple[bytes, str]]:
    """A tenant's digests, each with the place it stands at."""
    if not name or not name.isprintable():
        raise ValueError(f"{name!r} is no name of a tenant; it needs at least one character, and printable ones")
    where = f"tenants.{name}"
    if not isinstance(table, dict):
        raise ValueError(f"{where} is not a table; write [{where}] and its keys below")
    for field in table:
        if field not in _FIELDS:
            raise ValueError(f"{where}.{field} is unknown; known are {', '.join(_FIELDS)}")
    for field in ("admin", "share"):
        if not isinstance(table.get(field, False), bool):
            raise ValueError(f"{where}.{field} is neither true nor false")
    digests = [
        *((_digest_of_key(key, place), place) for key, place in _strings(table, where, "keys")),
        *((_digest_as_hex(text, place), place) for text, place in _strings(table, where, "key_sha256")),
    ]
    if not digests:
        raise ValueError(f"{where} has no key; give keys or key_sha256")
    return digests


def _rules(table: dict[str, Any], where: str) -> TenantRules:
    low, high = _number(table, where, "min_share", 0.0), _number(table, where, "max_share", 1.0)
    weight = _number(table, where, "weight", 1.0)
    if not 1 / _MOST_WEIGHT <= weight <= _MOST_WEIGHT:
        raise ValueError(f"{where}.weight is {weight:g}; it must lie between {1 / _MOST_WEIGHT:g} and {_MOST_WEIGHT:g}")
    return TenantRules(Share(low, high), weight)


def _number(table: dict[str, Any], where: str, field: str, default: float) -> float:
    value = table.get(field, default)
    if type(value) not in (int, float):
        raise ValueError(f"{where}.{field} is not a number")
    return float(value)


def _unshared_routes(tables: Any) -> frozenset[str]:
    if not isinstance(tables, dict):
        raise ValueError('routes is not a table; write [routes."/v1/completions"] and share = false below')
    for path, table in tables.items():
        where = f'routes."{path}"'
        if path not in SHARING_ROUTES:
            raise ValueError(f"{where} is no route that reuses prompts; those are {', '.join(SHARING_ROUTES)}")
        if not isinstance(table, dict) or set(table) != {"share"} or not isinstance(table["share"], bool):
            raise ValueError(f"{where} holds share, true or false, and nothing else")
    return frozenset(path for path, table in tables.items() if not table["share"])


def _strings(table: dict[str, Any], where: str, field: str) -> list[tuple[str, str]]:
    values = table.get(field, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{where}.{field} is not a list of strings")
    return [(value, f"{where}.{field}[{i}]") for i, value in enumerate(values)]


def _digest_of_key(key: str, place: str) -> bytes:
    if not key or not all("!" <= char <= "~" for char in key):
        raise ValueError(f"{place} is empty or holds what a header cannot carry; use printable ASCII without spaces")
    return sha256(key.encode("ascii")).digest()


def _digest_as_hex(text: str, place: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != _DIGEST_BYTES:
        raise ValueError(f"{place} is not a SHA-256 digest: 64 hex digits, as `printf %s KEY | sha256sum` prints them")
    return digest
