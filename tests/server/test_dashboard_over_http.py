"""The dashboard's resource and files on a real server: figures that agree with the metrics, and who may see them."""

from __future__ import annotations

import base64
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from pageinn.server import dashboard
from pageinn.server.dashboard.feed import FRESH

STATIC = Path(dashboard.__file__).parent / "static"
PROMPT = "Each book has a shelf, each shelf has a number, and each number is on the plan at the door. " * 4


@pytest.fixture(scope="module")
def shop(start_server, qwen_path: Path) -> Iterator[Any]:
    made = start_server(str(qwen_path), "--kv-cache-memory-bytes", "2MiB", "--threads", "1")
    yield made
    assert made.stop() == 0, "".join(made.log)


def state_of(server, **headers: str) -> dict[str, Any]:
    got = server.http.get("/dashboard/state", headers=headers)
    assert got.status_code == 200, got.text
    return got.json()


def test_blocks_by_state_are_those_of_the_metrics(shop, comes_true) -> None:
    """Field case A8 on the page: free + kept + in use is the pool, in the figures, the cells and the metrics."""
    shop.complete(PROMPT, max_tokens=1)
    shop.complete(PROMPT + "Where is the plan?", max_tokens=4)

    def is_news(state: dict[str, Any]) -> bool:
        if state["memory"] is None or state["now"]["queries"] != shop.metric("prefix_cache_queries_total"):
            return False
        return state["memory"]["counts"]["kept"] == shop.metric("kv_blocks", state="kept") > 0

    assert comes_true(lambda: is_news(state_of(shop)))
    state = state_of(shop)
    counts, blocks = state["memory"]["counts"], shop.blocks()
    assert counts["free"] == blocks["free"]
    assert counts["kept"] + counts["pinned"] == blocks["kept"]
    assert counts["in_use"] + counts["shared"] == blocks["in_use"]
    cells = base64.b64decode(state["memory"]["cells"])
    names = ("free", "kept", "pinned", "in_use", "shared")
    found = Counter(names[cell & 7] for cell in cells)
    assert {name: found[name] for name in names} == counts
    assert state["now"]["hits"] == shop.metric("prefix_cache_hits_total") > 0
    assert state["now"]["queries"] == shop.metric("prefix_cache_queries_total")
    (tenant,) = [one for one in state["tenants"] if one["name"] == "default"]
    assert tenant["kept"] == shop.metric("tenant_kv_blocks", tenant="default", state="kept")
    assert sum(node["blocks"] for node in state["memory"]["tree"]["nodes"]) == blocks["kept"]


def test_all_who_look_in_one_second_are_told_the_same(shop) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(12) as pool:
        told = list(pool.map(lambda _: httpx.get(f"{shop.url}/dashboard/state", timeout=60).content, range(24)))
    # The first may be one that was about to go, and each but the last two lived through a FRESH of this time.
    assert len(set(told)) <= 2 + (time.monotonic() - began) / FRESH, "one state a second, whoever asks"


def test_a_client_without_gzip_is_told_the_same(shop) -> None:
    got = shop.http.get("/dashboard/state", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in got.headers
    assert got.json()["server"]["block_size"] == 16


def test_nothing_of_a_prompt_is_told(shop) -> None:
    shop.complete("Zebedee keeps the plan of the cellar, and nobody else does, so ask Zebedee.", max_tokens=1)
    assert "Zebedee" not in shop.http.get("/dashboard/state").text


def test_the_policy_lets_nothing_in_from_elsewhere(shop) -> None:
    """No inline script or style is needed, so none is allowed."""
    got = shop.http.get("/")
    assert got.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in got.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", got.text)
    named = re.findall(r'(?:src|href)="([^"]+)"', got.text)
    assert len(named) >= 5
    for path in named:
        file = shop.http.get(path)
        assert file.status_code == 200, path
        assert file.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["../routes.py", "%2e%2e/routes.py", "vendor/uPlot.LICENSE", "vendor", "", "index.html"]
)
def test_no_other_file_is_served(shop, name: str) -> None:
    got = shop.http.get(f"/dashboard/static/{name}")
    assert got.status_code == 404


def test_the_parts_of_others_are_as_they_were_published() -> None:
    """vendor/README.md names each file's version, source, licence and digest."""
    text = (STATIC / "vendor/README.md").read_text()
    files = [file for file in (STATIC / "vendor").iterdir() if file.suffix in (".js", ".css")]
    assert len(files) == 3
    for file in files:
        assert f"| {file.name} |" in text
        assert sha256(file.read_bytes()).hexdigest() in text, file.name
    for name in ("uPlot", "d3-hierarchy"):
        assert "Permission" in (STATIC / f"vendor/{name}.LICENSE").read_text()


KEYS = """
[tenants.alice]
keys = ["sk-alice"]
[tenants.operator]
keys = ["sk-operator"]
admin = true
"""


def test_with_keys_the_state_is_for_admins_and_the_shell_for_all(start_server, qwen_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    server = start_server(
        *(str(qwen_path), "--kv-cache-memory-bytes", "1MiB", "--threads", "1", "--api-keys", str(path))
    )
    try:
        assert server.http.get("/").status_code == 200
        assert server.http.get("/dashboard/static/main.js").status_code == 200
        assert server.http.get("/dashboard/state").status_code == 401
        for key, status in (("sk-alice", 403), ("sk-wrong", 401), ("sk-operator", 200)):
            got = server.http.get("/dashboard/state", headers={"authorization": f"Bearer {key}"})
            assert got.status_code == status, key
        assert server.http.get("/dashboard/statement").status_code == 401, "what is not named is closed"
    finally:
        server.stop()


def test_without_tenants_it_takes_the_key_of_the_metrics(start_server, qwen_path: Path) -> None:
    """It tells what the metrics tell, and more."""
    server = start_server(
        *(str(qwen_path), "--kv-cache-memory-bytes", "1MiB", "--threads", "1", "--metrics-key", "scrape")
    )
    try:
        assert server.http.get("/dashboard/state").status_code == 401
        assert state_of(server, authorization="Bearer scrape")["now"]["running"] == 0
        assert server.http.get("/").status_code == 200
    finally:
        server.stop()
