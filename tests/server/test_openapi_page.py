"""schemathesis asks the server what its own OpenAPI page allows, and what it does not: nothing is a 500."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WITH_BODIES = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/cache/public", "/cache/pins"]
WITHOUT = [
    "/cache/misses",
    "/cache/pins/{name}",
    "/v1/models",
    "/v1/models/{name}",
    "/reset_prefix_cache",
    "/health",
    "/ready",
    "/metrics",
]
POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


@pytest.fixture(scope="module")
def page(start_server, qwen_path) -> Iterator[schemathesis.BaseSchema]:
    flags = ("--kv-cache-memory-bytes", "1MiB", "--max-model-len", "64", "--threads", "1")
    made = start_server(str(qwen_path), *flags)
    yield schemathesis.openapi.from_url(f"{made.url}/openapi.json")
    assert made.http.get("/ready").status_code == 200
    assert made.stop() == 0


def test_all_of_the_page_is_asked(page: schemathesis.BaseSchema) -> None:
    assert {found.ok().path for found in page.get_all_operations()} == {*WITH_BODIES, *WITHOUT}


@pytest.mark.parametrize(
    ("path", "mode"),
    [(path, POSITIVE) for path in [*WITH_BODIES, *WITHOUT]] + [(path, NEGATIVE) for path in WITH_BODIES],
)
def test_no_question_is_answered_by_a_mistake_of_ours(
    page: schemathesis.BaseSchema, path: str, mode: schemathesis.GenerationMode
) -> None:
    operation = next(
        found.ok()
        for found in page.get_all_operations()
        if found.ok().path == path and (path not in WITH_BODIES or found.ok().method == "post")
    )

    @given(st.data())
    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def ask(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        got = case.call(timeout=60)
        assert got.status_code < 500, got.text

    ask()
