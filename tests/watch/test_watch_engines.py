"""Exposition text of real servers, read for what it says."""

from __future__ import annotations

import json

import pytest
from endpoints import METRICS

from pageinn.watch.engines import sample_of
from pageinn.watch.exposition import ScrapeError, metrics_url, parse
from pageinn.watch.sample import SampleError, from_json, to_json

VLLM = (METRICS / "vllm_datadog_fixture_metrics.prom").read_text()
SGLANG = (METRICS / "sglang_docs_metrics.prom").read_text()
#: The names and help texts of llama.cpp's tools/server/README.md; no server's answer is to be had under a licence.
LLAMACPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 512
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 39080
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 46
# HELP llamacpp:predicted_tokens_seconds Average generation throughput in tokens/s.
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds nan
"""


def test_vllms_text() -> None:
    sample = sample_of(parse(VLLM), 7.0)
    assert (sample.engine, sample.time) == ("vllm", 7.0)
    assert (sample.queries, sample.hits, sample.preemptions) == (117, 64, 0)
    assert (sample.computed, sample.prompt_tokens, sample.generated) == (53, 5, 7)
    assert (sample.running, sample.waiting, sample.usage) == (0, 0, 0)
    assert (sample.requests, sample.refused) == (1, {})
    assert sample.first_token == pytest.approx(0.31326723098754883)
    assert sample.facts["block_size"] == "16"
    assert sample.facts["enable_prefix_caching"] == "False"
    assert sample.facts["num_gpu_blocks"] == "7281"


def test_sglangs_text() -> None:
    """It has a gauge of the hit rate and no count of cached tokens."""
    sample = sample_of(parse(SGLANG), 7.0)
    assert sample.engine == "sglang"
    assert (sample.queries, sample.hits, sample.prompt_tokens) == (None, None, 8.128902e06)
    assert sample.hit_rate == pytest.approx(0.007507552643049313)
    assert (sample.running, sample.waiting, sample.usage) == (162, 2826, 0.28)
    assert sample.requests == 11228
    # 123,859 used tokens are 28 % of the pool.
    assert float(sample.facts["tokens"]) == pytest.approx(123859 / 0.28, abs=1)
    assert sample.buckets[-1] == (float("inf"), 11008)


def test_sglangs_newer_counters_and_underscores() -> None:
    text = SGLANG.replace("sglang:", "sglang_") + (
        'sglang_cached_tokens_total{cache_source="device"} 1000000\n'
        'sglang_cached_tokens_total{cache_source="host"} 500000\n'
        'sglang_num_retracted_requests_total{tp_rank="0"} 4\n'
        'sglang_num_retracted_requests_total{tp_rank="1"} 4\n'
        "sglang_max_total_num_tokens 442353\nsglang_kv_evictable_tokens 221176.5\n"
        "sglang_num_aborted_requests_total 3\n"
    )
    sample = sample_of(parse(text), 7.0)
    assert (sample.queries, sample.hits, sample.computed) == (8128902, 1500000, 6628902)
    assert (sample.preemptions, sample.kept, sample.refused) == (4, 0.5, {"abort": 3})


def test_llama_servers_text_plain_and_as_a_json_string() -> None:
    for text in (LLAMACPP, json.dumps(LLAMACPP)):
        sample = sample_of(parse(text), 7.0)
        assert (sample.engine, sample.computed, sample.generated) == ("llamacpp", 512, 39080)
        assert (sample.running, sample.waiting) == (4, 46)
        assert sample.queries is sample.hits is sample.usage is sample.preemptions is None


def test_several_engines_behind_one_endpoint_are_added() -> None:
    text = "".join(
        f'vllm:prefix_cache_queries_total{{engine="{at}"}} {100 * (at + 1)}\n'
        f'vllm:prefix_cache_hits_total{{engine="{at}"}} 50\nvllm:kv_cache_usage_perc{{engine="{at}"}} {0.2 + at}\n'
        for at in range(2)
    )
    sample = sample_of(parse(text), 7.0)
    assert (sample.queries, sample.hits, sample.usage) == (300, 100, 1.2)


def test_vllms_older_names() -> None:
    text = "vllm:gpu_prefix_cache_queries_total 10\nvllm:gpu_prefix_cache_hits_total 4\nvllm:gpu_cache_usage_perc 0.5\n"
    sample = sample_of(parse(text), 7.0)
    assert (sample.queries, sample.hits, sample.usage) == (10, 4, 0.5)


@pytest.mark.parametrize("text", ["<html>no</html>", '"half a string', "vllm:x{ 1\n"])
def test_what_is_no_exposition_text(text: str) -> None:
    with pytest.raises(ScrapeError, match="not Prometheus' text format"):
        parse(text)


def test_metrics_of_nobody_known() -> None:
    with pytest.raises(ScrapeError, match="of no engine that is known"):
        sample_of(parse("process_cpu_seconds_total 3\n"), 7.0)


@pytest.mark.parametrize("url", ["h:1", "http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/metrics"])
def test_where_the_metrics_are(url: str) -> None:
    assert metrics_url(url) == "http://h:1/metrics"


def test_a_sample_survives_its_line() -> None:
    for text in (VLLM, SGLANG, LLAMACPP):
        sample = sample_of(parse(text), 7.0)
        assert from_json(json.loads(json.dumps(to_json(sample)))) == sample
    for row in ([], {}, {"engine": "vllm"}, {"engine": "vllm", "time": 1, "nonsense": 1}):
        with pytest.raises(SampleError):
            from_json(row)
