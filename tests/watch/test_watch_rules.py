"""Rules and dashboards: promtool checks them, plays series through them, and Prometheus evaluates them on a server."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from endpoints import METRICS

from pageinn.cli import main
from pageinn.watch.dashboard import dashboard
from pageinn.watch.rules import NAMES, rules, rules_text
from served_pageinn import served_pageinn

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is in Debian's prometheus")
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus")
#: Series of one server for an hour in steps of 15 s: 240 of them.
INSTANCE = 'job="llm",instance="a"'


def promtool(action: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", action, "rules", path], check=False, capture_output=True, text=True)


@needs_promtool
@pytest.mark.parametrize("engine", NAMES)
def test_promtool_takes_the_rules(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--emit", "prometheus", "--engine", engine]) == 0
    (tmp_path / "rules.yml").write_text(capsys.readouterr().out)
    got = promtool("check", tmp_path / "rules.yml")
    assert got.returncode == 0, got.stderr
    assert f"SUCCESS: {len(rules(engine))} rules found" in got.stdout


def _of_instance(name: str) -> str:
    return name.replace("}", f",{INSTANCE}}}") if "}" in name else f"{name}{{{INSTANCE}}}"


def play(tmp_path: Path, engine: str, series: dict[str, str], at: str) -> set[str]:
    """Which alerts fire at a time, by promtool's own evaluation."""
    (tmp_path / "rules.yml").write_text(rules_text(engine))
    rows = [{"series": _of_instance(name), "values": values} for name, values in series.items()]
    firing = set()
    for alert in (rule["alert"] for rule in rules(engine)):
        test = {
            "rule_files": ["rules.yml"],
            "evaluation_interval": "15s",
            "tests": [
                {
                    "interval": "15s",
                    "input_series": rows,
                    "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": []}],
                }
            ],
        }
        (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
        got = promtool("test", tmp_path / "test.yml")
        if got.returncode:
            assert "got:[" in re.sub(r"\s", "", got.stderr + got.stdout), got.stderr + got.stdout
            firing.add(alert)
    return firing


@needs_promtool
def test_a_fall_of_the_hit_rate_fires_within_a_minute(tmp_path: Path) -> None:
    """85 % for an hour, then 12 %: 60,000 tokens in 15 s."""
    series = {
        "vllm:prefix_cache_queries_total": "0+60000x260",
        "vllm:prefix_cache_hits_total": "0+51000x240 12247200+7200x20",
        'vllm:request_success_total{finished_reason="stop"}': "0+60x260",
        "vllm:num_preemptions_total": "0x260",
        "vllm:kv_cache_usage_perc": "0.5x260",
    }
    assert play(tmp_path, "vllm", series, "60m") == set()
    assert play(tmp_path, "vllm", series, "61m") == {"PrefixCacheHitRateFallen"}


@needs_promtool
def test_preemptions_thrash_refusals_and_a_queue_fire(tmp_path: Path) -> None:
    series = {
        "vllm:prefix_cache_queries_total": "0+60000x80",
        "vllm:prefix_cache_hits_total": "0+30000x80",
        'vllm:request_success_total{finished_reason="stop"}': "0+15x80",
        'vllm:request_success_total{finished_reason="abort"}': "0+3x80",
        "vllm:num_preemptions_total": "0+15x80",
        "vllm:kv_cache_usage_perc": "0.99x80",
        "vllm:num_requests_waiting": "4x80",
    }
    fired = play(tmp_path, "vllm", series, "15m")
    assert fired == {"Preemptions", "CacheThrash", "RequestsRefused", "RequestsWaiting"}


@needs_promtool
def test_pageinns_own_rules_fire(tmp_path: Path) -> None:
    series = {
        'pageinn:prefix_cache_queries_total{model_name="m"}': "0+600x80",
        'pageinn:prefix_cache_hits_total{model_name="m"}': "0x80",
        'pageinn:time_to_first_token_seconds_count{model_name="m"}': "0+60x80",
        'pageinn:prefix_cache_below_granularity_total{model_name="m"}': "0+50x80",
        'pageinn:prompt_tokens_computed_total{model_name="m"}': "0+600x80",
        'pageinn:recomputed_tokens_total{model_name="m"}': "0+600x80",
        'pageinn:kv_cache_usage_perc{model_name="m"}': "1x80",
        'pageinn:num_preemptions_total{model_name="m"}': "0x80",
        'pageinn:num_requests_waiting{model_name="m"}': "0x80",
    }
    assert play(tmp_path, "pageinn", series, "15m") == {"ReuseBelowGranularity", "CacheThrash"}


def test_vllms_names_are_those_of_a_release() -> None:
    """Families of vLLM 0.26.0; a histogram's counts have names of their own."""
    lines = (METRICS / "vllm_v0.26.0_metric_families.txt").read_text().splitlines()
    families = {line.split()[0] for line in lines if not line.startswith("#")}
    queries = [rule["expr"] for rule in rules("vllm")]
    queries += [target["expr"] for panel in dashboard("vllm")["panels"] for target in panel["targets"]]
    names = {name.removesuffix("_bucket") for query in queries for name in re.findall(r"vllm:\w+", query)}
    assert names <= families
    assert len(names) > 8


@pytest.mark.parametrize("engine", NAMES)
def test_a_dashboard_queries_only_the_engines_own_names(engine: str) -> None:
    board = dashboard(engine)
    panels = board["panels"]
    assert panels
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            names = set(re.findall(r"\b(pageinn|vllm|sglang|llamacpp):", target["expr"]))
            assert names == {engine}
    json.dumps(board)


@needs_promtool
@pytest.mark.parametrize("engine", NAMES)
def test_every_query_of_a_dashboard_parses(engine: str, tmp_path: Path) -> None:
    """As recording rules, Grafana's interval put in."""
    queries = [target["expr"] for panel in dashboard(engine)["panels"] for target in panel["targets"]]
    recorded = [
        {"record": f"q{at}", "expr": query.replace("$__rate_interval", "1m")} for at, query in enumerate(queries)
    ]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": recorded}]}))
    got = promtool("check", tmp_path / "queries.yml")
    assert got.returncode == 0, got.stderr


KEYS = """\
[tenants.alice]
keys = ["sk-alice"]
[tenants.bob]
keys = ["sk-bob"]
"""
PROMPT = "One two three four five six seven eight nine ten. " * 10


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with two tenants, of whom nobody has asked anything."""
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(KEYS)
    with served_pageinn("--kv-cache-memory-bytes", "64MiB", "--api-keys", str(keys)) as url:
        yield url


def complete(url: str, tenant: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 1}
    headers = {"authorization": f"Bearer sk-{tenant}"}
    httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60).raise_for_status()


def test_every_name_that_is_asked_for_is_on_a_real_server(server_url: str) -> None:
    """Also before the first request: a counter of what has not happened yet may have no sample, its family is there."""
    served = httpx.get(f"{server_url}/metrics", timeout=60).text
    asked = rules_text("pageinn") + json.dumps(dashboard("pageinn"))
    names = {name.removesuffix("_bucket").removesuffix("_count") for name in re.findall(r"pageinn:\w+", asked)}
    assert len(names) >= 20
    assert not [name for name in names if f"# TYPE {name} " not in served]
    for name in NAMES["pageinn"].by_tenant or ():
        assert re.search(rf'^{name}{{[^}}]*tenant="alice"', served, re.MULTILINE), name


def test_only_pageinn_knows_tenants() -> None:
    titles = {engine: [panel["title"] for panel in dashboard(engine)["panels"]] for engine in NAMES}
    by_tenant = {engine: [title for title in found if "tenant" in title] for engine, found in titles.items()}
    assert by_tenant.pop("pageinn") == [
        "Hit rate by tenant",
        "Cache by tenant",
        "Evicted blocks by tenant",
        "Preemptions by tenant",
    ]
    assert not any(by_tenant.values())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@needs_prometheus
def test_prometheus_evaluates_the_rules_on_a_real_server(server_url: str, tmp_path: Path) -> None:
    """Every rule is healthy, and so is every query of the dashboard; the hit rates are the server's, by tenant too."""
    (tmp_path / "rules.yml").write_text(rules_text("pageinn"))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(tmp_path / "rules.yml")],
        "scrape_configs": [{"job_name": "llm", "static_configs": [{"targets": [server_url.split("//")[1]]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=60) as api:
            wait_for(lambda: query(api, "up"))
            for tenant in ("alice", "alice", "alice", "alice", "bob"):
                complete(server_url, tenant)
            rate = (
                "sum by (instance) (pageinn:prefix_cache_hits_total) / "
                "sum by (instance) (pageinn:prefix_cache_queries_total)"
            )
            # All but the last token of three prompts of five, all alice's.
            wait_for(lambda: 0.55 < (query(api, rate) or 0) < 0.6)
            complete(server_url, "alice")
            complete(server_url, "bob")
            panels = {panel["title"]: panel["targets"] for panel in dashboard("pageinn")["panels"]}
            for target in (target for targets in panels.values() for target in targets):
                query_all(api, filled(target["expr"]))
            by_tenant = filled(panels["Hit rate by tenant"][0]["expr"])
            # Since the first look at the server both asked the same again, of which all but a token was there.
            wait_for(lambda: {*query_all(api, by_tenant)} >= {("alice",), ("bob",)})
            # 64 MiB are 182 blocks; each tenant keeps the same prompt of its own. Nobody asks any more, but the latest
            # look at the server may have come upon a request.
            kept = cached_blocks(server_url, "alice") / 182
            idle = {
                (name, state): value for name in ("alice", "bob") for state, value in (("kept", kept), ("in_use", 0))
            }
            by_state = filled(panels["Cache by tenant"][0]["expr"])
            wait_for(lambda: {key: value for key, value in query_all(api, by_state).items() if key in idle} == idle)
            wait_for(lambda: all(rule["health"] == "ok" for rule in known_rules(api)))
            assert {rule["name"] for rule in known_rules(api)} == {rule["alert"] for rule in rules("pageinn")}
            assert query(api, 'up{job="llm"}') == 1
    finally:
        process.terminate()
        process.wait(timeout=60)


def known_rules(api: httpx.Client) -> list[dict[str, Any]]:
    groups = api.get("/rules").json()["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def filled(expression: str) -> str:
    """A dashboard's query with Grafana's interval put in."""
    return expression.replace("$__rate_interval", "1m")


def query_all(api: httpx.Client, expression: str) -> dict[tuple[str, ...], float]:
    """Values by tenant, and state where there is one. The query must be good."""
    answer = api.get("/query", params={"query": expression}).json()
    assert answer["status"] == "success", answer
    found = {}
    for row in answer["data"]["result"]:
        labels = [row["metric"][name] for name in ("tenant", "state") if name in row["metric"]]
        found[tuple(labels)] = float(row["value"][1])
    return found


def cached_blocks(url: str, tenant: str) -> float:
    served = httpx.get(f"{url}/metrics", timeout=60).text
    found = re.search(rf'^pageinn:tenant_kv_blocks{{[^}}]*state="kept",tenant="{tenant}"}} (\S+)', served, re.MULTILINE)
    assert found, served
    return float(found[1])


def query(api: httpx.Client, expression: str) -> float | None:
    try:
        found = api.get("/query", params={"query": expression}).json()["data"]["result"]
    except (httpx.TransportError, KeyError, ValueError):
        return None
    return float(found[0]["value"][1]) if found else None


def wait_for(condition: object, seconds: float = 60) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)
