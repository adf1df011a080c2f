"""A local server with the hub's layout: a repository's commit, its tree, its files with their headers."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves folders by name; `gated` names list their files and give none. asked: the paths of all requests."""

    daemon_threads = True

    def __init__(self, folders: dict[str, Path], gated: frozenset[str] = frozenset()) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folders = folders
        self.gated = gated
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = urlparse(self.path).path
        self.server.asked.append(path)
        parts = path.strip("/").split("/")
        api = parts[0] == "api"
        name = "/".join(parts[2:4] if api else parts[:2])
        if name not in self.server.folders:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif api and parts[4] == "revision":
            siblings = [{"rfilename": file.name} for file in self._files(name)]
            self._json({"id": name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []})
        elif api and parts[4] == "tree":
            self._json(
                [
                    {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _etag(file)}
                    for file in self._files(name)
                ]
            )
        elif name in self.server.gated:
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        else:
            file = self.server.folders[name] / parts[-1]
            headers = {"ETag": f'"{_etag(file)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            self._answer(200, file.read_bytes(), headers)

    do_HEAD = do_GET  # noqa: N815 (the base class looks for this name)

    def _files(self, name: str) -> list[Path]:
        return sorted(self.server.folders[name].iterdir())

    def _json(self, content: object) -> None:
        self._answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    thread = threading.Thread(target=hub.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
