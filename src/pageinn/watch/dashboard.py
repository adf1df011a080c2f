"""A Grafana dashboard in the engine's own metric names."""

from __future__ import annotations

from typing import Any

from pageinn.watch.engines import TITLES
from pageinn.watch.rules import NAMES, Names, hit_rate

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_HEIGHT, _HALF = 8, 12


def dashboard(engine: str) -> dict[str, Any]:
    """The dashboard's JSON model, to be imported; its data source is asked for there."""
    panels = [_panel(at, title, unit, queries) for at, (title, unit, queries) in enumerate(_contents(NAMES[engine]))]
    return {
        "title": f"{TITLES[engine]} cache",
        "uid": f"pageinn-watch-{engine}",
        "tags": ["pageinn", "llm", "kv-cache"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def _contents(names: Names) -> list[tuple[str, str, dict[str, str]]]:
    """Titles, units and PromQL by legend; panels without a query are left out."""
    window = "$__rate_interval"

    def rate(selector: str | None) -> str | None:
        return None if selector is None else f"sum by (instance) (rate({selector}[{window}]))"

    def quantile(share: float) -> str | None:
        if names.first_token is None:
            return None
        return f"histogram_quantile({share}, sum by (le, instance) (rate({names.first_token}_bucket[{window}])))"

    rows: list[tuple[str, str, dict[str, str | None]]] = [
        (
            "Hit rate",
            "percentunit",
            {"hit rate": None if names.hits is None else hit_rate(names, window), "own gauge": names.hit_rate},
        ),
        ("Cache in use", "percentunit", {"in use": names.usage}),
        ("Time to first token", "s", {"median": quantile(0.5), "95 %": quantile(0.95)}),
        (
            "Prompt tokens",
            "short",
            {"looked up": rate(names.queries), "found": rate(names.hits), "computed": rate(names.computed)},
        ),
        ("Requests", "short", {"running": names.running, "waiting": names.waiting}),
        ("Generated tokens", "short", {"per second": rate(names.generated)}),
        (
            "Preemptions",
            "short",
            {
                "per second": rate(names.preemptions),
                "{{way}}": None if names.by_way is None else f"sum by (instance, way) (rate({names.by_way}[{window}]))",
                "tokens again": rate(names.recomputed),
            },
        ),
        ("Refused or failed", "short", {"per second": rate(names.refused), "too short": rate(names.short)}),
    ]
    kept = [(title, unit, {name: query for name, query in queries.items() if query}) for title, unit, queries in rows]
    return [row for row in kept if row[2]] + _of_tenants(names, window)


def _of_tenants(names: Names, window: str) -> list[tuple[str, str, dict[str, str]]]:
    """Whose the hits, the blocks, the evictions and the preemptions are."""
    tenant = names.by_tenant
    if tenant is None:
        return []

    def rate(selector: str) -> str:
        return f"sum by (instance, tenant) (rate({selector}[{window}]))"

    held = f"sum by (instance, tenant, state) ({tenant.blocks})"
    return [
        ("Hit rate by tenant", "percentunit", {"{{tenant}}": f"{rate(tenant.hits)} / {rate(tenant.queries)}"}),
        (
            "Cache by tenant",
            "percentunit",
            {"{{tenant}} {{state}}": f"{held} / on (instance) group_left () sum by (instance) ({names.blocks})"},
        ),
        ("Evicted blocks by tenant", "short", {"{{tenant}}": rate(tenant.evicted)}),
        ("Preemptions by tenant", "short", {"{{tenant}}": rate(tenant.preemptions)}),
    ]


def _panel(at: int, title: str, unit: str, queries: dict[str, str]) -> dict[str, Any]:
    limits = {"min": 0, "max": 1} if unit == "percentunit" else {"min": 0}
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"x": _HALF * (at % 2), "y": _HEIGHT * (at // 2), "w": _HALF, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, **limits}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": f"{name} {{{{instance}}}}",
            }
            for number, (name, query) in enumerate(queries.items())
        ],
    }
