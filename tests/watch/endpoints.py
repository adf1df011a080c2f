"""Metrics endpoints for tests: real exposition text over real HTTP, and text with numbers put in."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

METRICS = Path(__file__).parents[1] / "data" / "engine_metrics"


class Endpoint:
    """What GET /metrics answers, settable, and what was POSTed."""

    def __init__(self, text: str, status: int = 200) -> None:
        self.text = text
        self.status = status
        self.posted: list[dict[str, object]] = []
        self.keys: list[str | None] = []
        self.url = ""


@contextmanager
def serving(text: str, status: int = 200) -> Iterator[Endpoint]:
    endpoint = Endpoint(text, status)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            endpoint.keys.append(self.headers.get("authorization"))
            body = endpoint.text.encode()
            self.send_response(endpoint.status if self.path == "/metrics" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            endpoint.posted.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()


def vllm_text(queries: float, hits: float, requests: float = 0, preemptions: float = 0, usage: float = 0.5) -> str:
    """vLLM's names with a model's label, as they are scraped."""
    label = '{model_name="m",engine="0"}'
    rows = {
        "prefix_cache_queries_total": queries,
        "prefix_cache_hits_total": hits,
        "num_preemptions_total": preemptions,
        "kv_cache_usage_perc": usage,
        "num_requests_running": 3,
        "num_requests_waiting": 1,
    }
    lines = [f"vllm:{name}{label} {value}" for name, value in rows.items()]
    lines.append(f'vllm:request_success_total{{model_name="m",finished_reason="stop"}} {requests}')
    return "\n".join(lines) + "\n"
