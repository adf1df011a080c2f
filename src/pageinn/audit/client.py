"""One tenant of an OpenAI-compatible server, who sends a prompt and looks at the clock."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

import httpx

#: Seconds until a request is given up. A connection that is refused is known at once.
TIMEOUT = httpx.Timeout(300, connect=10)
_DATA = "data:"
_BUSY = (429, 503)


class AuditError(RuntimeError):
    """The server cannot be audited; one line says why."""


class BusyError(RuntimeError):
    """The server turned a request away for now. seconds: when to try again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the server is busy for {seconds:g} s")
        self.seconds = seconds


class TooLongError(AuditError):
    """The server takes no prompt of this length."""


class Caller(NamedTuple):
    """Who sends: a key, a cache_salt beside it, or neither."""

    key: str | None = None
    salt: str | None = None


class Seen(NamedTuple):
    """What came back. seconds: from sending to the first token. tokens, cached: 0 where the server does not count."""

    seconds: float
    tokens: int
    cached: int


class Tenant:
    """A caller's connection. Every method raises AuditError, and BusyError where the server says to come again."""

    def __init__(self, url: str, caller: Caller) -> None:
        headers = {} if caller.key is None else {"authorization": f"Bearer {caller.key}"}
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT)
        except (httpx.InvalidURL, UnicodeEncodeError, ValueError) as error:
            raise AuditError(f"{url}: no address, or a key that is not ASCII: {error}") from error
        self._salt = caller.salt
        self._url = url

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def model(self) -> str:
        """The name of the model served."""
        try:
            got = self._http.get("/v1/models")
            _refuse(got, "/v1/models")
            return str(got.json()["data"][0]["id"])
        except (httpx.TransportError, httpx.UnsupportedProtocol) as error:
            raise self._lost(error) from error
        except (ValueError, LookupError, TypeError) as error:
            raise AuditError(f"{self._url} is no OpenAI-compatible server: it lists no model") from error

    def ask(self, model: str, prompt: str) -> Seen:
        """Send a prompt, wait for the first token and for the end."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._salt is not None:
            body["cache_salt"] = self._salt
        first: float | None = None
        usage: dict[str, Any] = {}
        sent = time.perf_counter()
        try:
            with self._http.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    _refuse(answer, "/v1/completions")
                for line in answer.iter_lines():
                    # The clock first: reading the line is not the server's time.
                    now = time.perf_counter()
                    event = _event(line)
                    if event.get("choices") and first is None:
                        first = now - sent
                    usage = event.get("usage") or usage
        except httpx.TransportError as error:
            raise self._lost(error) from error
        if first is None:
            raise AuditError(f"{self._url} ended an answer without a token")
        details = usage.get("prompt_tokens_details") or {}
        return Seen(first, int(usage.get("prompt_tokens") or 0), int(details.get("cached_tokens") or 0))

    def publish(self, model: str, prompt: str) -> None:
        """Have the server compute a prompt that all may read, as pageinn's operator can."""
        try:
            got = self._http.post("/cache/public", json={"model": model, "prompt": prompt})
        except httpx.TransportError as error:
            raise self._lost(error) from error
        _refuse(got, "/cache/public")

    def _lost(self, error: Exception) -> AuditError:
        return AuditError(f"cannot reach {self._url}: {str(error) or type(error).__name__}")


def _event(line: str) -> dict[str, Any]:
    """What a line of an event stream holds; nothing for a comment, an empty line or the end."""
    if not line.startswith(_DATA) or line.endswith("[DONE]"):
        return {}
    try:
        event = json.loads(line.removeprefix(_DATA))
    except ValueError as error:
        raise AuditError(f"the server sent an event that is no JSON: {line[:80]}") from error
    if not isinstance(event, dict):
        raise AuditError(f"the server sent an event that is no object: {line[:80]}")
    if "error" in event:
        raise AuditError(f"the server ended an answer with an error: {str(event['error'])[:200]}")
    return event


def _refuse(got: httpx.Response, path: str) -> None:
    """Raise what a status means; nothing for a good one."""
    if got.status_code == httpx.codes.OK:
        return
    if got.status_code in _BUSY:
        raise BusyError(_seconds(got.headers.get("retry-after")))
    message = f"{path} answers {got.status_code}: {_reason(got)}"
    if got.status_code in (401, 403):
        raise AuditError(f"{message}; check the keys")
    raise (TooLongError if got.status_code in (400, 413) else AuditError)(message)


def _seconds(text: str | None) -> float:
    """How long to wait. The header may also hold a date, which nobody who serves models sends."""
    return float(text) if text is not None and text.isdecimal() else 1.0


def _reason(got: httpx.Response) -> str:
    """What a refusal says, in one line."""
    try:
        body = got.json()
        said = body["error"]["message"] if isinstance(body["error"], dict) else body["error"]
    except (ValueError, LookupError, TypeError):
        said = got.text
    return " ".join(str(said).split())[:200] or got.reason_phrase
