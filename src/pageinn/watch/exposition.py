"""The text of a metrics endpoint, fetched and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

#: A scrape that takes longer says something about the server too.
TIMEOUT = 10.0
#: Engines whose names are written with a colon, and with an underscore by some exporters.
PREFIXES = ("pageinn", "vllm", "sglang", "llamacpp")


class ScrapeError(RuntimeError):
    """The endpoint does not answer, or not with metrics; one line that names it and says what to do."""


class Exposition(NamedTuple):
    """Samples by name, each with its labels."""

    samples: Mapping[str, list[tuple[Mapping[str, str], float]]]

    def total(self, *names: str) -> float | None:
        """The sum over all label sets of the first of these names that is there; None if none is."""
        values = self._first(names)
        return sum(values) if values else None

    def greatest(self, *names: str) -> float | None:
        """The greatest over all label sets of the first of these names that is there; None if none is."""
        values = self._first(names)
        return max(values) if values else None

    def by(self, label: str, *names: str) -> dict[str, float]:
        """Sums by one label of the first of these names that is there."""
        sums: dict[str, float] = {}
        for name in names:
            for labels, value in self.samples.get(name, []):
                sums[labels.get(label, "")] = sums.get(labels.get(label, ""), 0.0) + value
            if sums:
                break
        return sums

    def labels(self, *names: str) -> dict[str, str]:
        """The labels of the first sample of the first of these names that is there; an info metric's content."""
        for name in names:
            for labels, _ in self.samples.get(name, []):
                return dict(labels)
        return {}

    def buckets(self, *names: str) -> tuple[tuple[float, float], ...]:
        """A histogram's upper bounds and cumulative counts, rising."""
        for name in names:
            found = self.by("le", name + "_bucket")
            if found:
                return tuple(sorted((float(bound), count) for bound, count in found.items()))
        return ()

    def _first(self, names: tuple[str, ...]) -> list[float]:
        for name in names:
            if name in self.samples:
                return [value for _, value in self.samples[name]]
        return []


def parse(text: str) -> Exposition:
    """Read exposition text. Raises ScrapeError for what is none."""
    if text.startswith('"'):
        # Some builds of llama-server answer with the text as one JSON string (ggml-org/llama.cpp issue 17384).
        try:
            text = str(json.loads(text))
        except ValueError as error:
            raise ScrapeError("what it answers is not Prometheus' text format") from error
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(_with_colon(sample.name), []).append((sample.labels, sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise ScrapeError("what it answers is not Prometheus' text format") from error
    return Exposition(samples)


def _with_colon(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix + "_"):
            return f"{prefix}:{name[len(prefix) + 1 :]}"
    return name


def metrics_url(url: str) -> str:
    """Where the metrics are: people give the server's root, with /v1 or with /metrics."""
    root = url if "://" in url else f"http://{url}"
    root = root.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
    return f"{root}/metrics"


def scrape(client: httpx.Client, url: str) -> Exposition:
    """Fetch and read. url: as metrics_url gives it. Raises ScrapeError."""
    try:
        got = client.get(url)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise ScrapeError(f"cannot reach {url}: {str(error) or type(error).__name__}") from error
    if got.status_code in (401, 403):
        raise ScrapeError(f"{url} wants a key; give it in the variable PAGEINN_API_KEY")
    if got.status_code == 404:
        raise ScrapeError(f"{url} is not there; SGLang serves it with --enable-metrics, llama-server with --metrics")
    if got.status_code != 200:
        raise ScrapeError(f"{url} answers {got.status_code}")
    try:
        return parse(got.text)
    except ScrapeError as error:
        raise ScrapeError(f"{url}: {error}") from error
