"""The planner's worked figures, to the digits: Llama-3-8B in bfloat16 unless a test says otherwise."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageinn.catalogue.accelerators import GIB, find_accelerator
from pageinn.catalogue.compute import Roofline
from pageinn.catalogue.memory import sequence_bytes
from pageinn.catalogue.models import find_model, models
from pageinn.memory.manager import MemoryManager
from pageinn.memory.pool import NoSpaceError
from pageinn.memory.scopes import DEFAULT
from pageinn.memory.tokens import pack
from pageinn.plan import lengths
from pageinn.plan.capacity import rows
from pageinn.plan.figures import PlanError
from pageinn.plan.inputs import Inputs, Measured
from pageinn.plan.pace import saving
from pageinn.plan.report import Report, as_text, explain, plan
from pageinn.plan.transfer import attention_seconds, break_even, prefill_seconds


def asked(card: str = "h100", model: str = "llama-3-8b", **changes: object) -> Inputs:
    base = Inputs(
        shape=find_model(model),
        accelerator=find_accelerator(card),
        weights="bfloat16",
        store="bfloat16",
        limit=8192,
        lengths=lengths.of_mean(2275),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def figures(report: Report) -> dict[str, float | None]:
    return {key: figure.value for key, figure in report.figures.items()}


def users(question: Inputs) -> dict[str, int]:
    return {row.key: row.users for row in rows(question)}


def test_bytes_per_token_of_a_prompt_and_at_the_limit() -> None:
    """131,072 bytes per token; 2,000 tokens 0.2441 GiB; 8,192 tokens 1.074 GB."""
    got = figures(plan(asked(shared=2000), "x"))
    assert got["bytes_per_token"] == 131_072
    assert round((got["one_prompt"] or 0) / GIB, 4) == 0.2441
    assert round((got["bytes_at_limit"] or 0) / 1e9, 3) == 1.074


def test_500_requests_on_one_prompt_of_2000_tokens() -> None:
    """122.07 GiB unshared, 121.8 saved."""
    got = figures(plan(asked(shared=2000, requests=500), "x"))
    assert round((got["unshared"] or 0) / GIB, 2) == 122.07
    assert round((got["saved"] or 0) / GIB, 1) == 121.8


def test_recompute_or_move_on_an_a100_with_pcie_4() -> None:
    """At 32 GB/s and 312 TFLOP/s: 33.6 ms one way, 421.7 ms of linear layers; 12.6 one way, 6.3 out and back."""
    got = figures(plan(asked("a100-80gb"), "x"))
    assert round(1e3 * (got["move"] or 0), 1) == 33.6
    assert round(1e3 * (got["prefill"] or 0), 1) == 421.7
    assert round(got["one_way"] or 0, 1) == 12.6
    assert round(got["out_and_back"] or 0, 1) == 6.3


def test_causal_attention_is_shown_apart() -> None:
    """By hand: 32 layers x 4 x 4,096 x 8,192 x 8,193 / 2 = 17.59e12 FLOPs: 56.4 ms more at 312 TFLOP/s."""
    got = figures(plan(asked("a100-80gb"), "x"))
    assert round(1e3 * (got["prefill_attention"] or 0), 1) == 56.4


def test_recompute_or_move_on_an_h100_with_pcie_5() -> None:
    """At 64 GB/s and 989 TFLOP/s; memory 3.35 TB/s against 64 GB/s = 52."""
    got = figures(plan(asked("h100"), "x"))
    assert round(1e3 * (got["move"] or 0), 1) == 16.8
    assert round(1e3 * (got["prefill"] or 0), 1) == 133.0
    assert round(1e3 * (got["prefill_attention"] or 0), 1) == 17.8
    assert round(got["one_way"] or 0, 1) == 7.9
    assert round(got["out_and_back"] or 0, 1) == 4.0
    assert round(got["memory_by_link"] or 0) == 52


def test_at_most_15_slots_are_lost() -> None:
    """1.875 MiB per sequence."""
    assert (figures(plan(asked(), "x"))["bytes_lost_at_most"] or 0) / 2**20 == 1.875


def test_users_at_once_with_53_gib_of_cache() -> None:
    """A limit of 8,192: 13, 53, 106; at a mean of 2,275 tokens paged 382, and 381 with last-block loss."""
    got = users(asked(store="fp8", cache=int(53.1 * GIB)))
    assert got == {"multi_head": 13, "grouped_query": 53, "store": 106, "paged": 382, "paged_in_blocks": 381}


def test_a_shorter_prefill_in_a_long_answer() -> None:
    """86 ms cut to 21 in 300 tokens at 7.9 ms: 65 of 2,456 ms, 2.6 %."""
    won = saving(0.086, 0.021, 300, 0.0079)
    assert (round(1e3 * won.saved), round(1e3 * won.whole)) == (65, 2456)
    assert round(100 * won.share, 1) == 2.6
    got = figures(plan(asked(measured=Measured(0.086, 0.021, 0.0079)), "x"))
    assert round(100 * (got["hit_share"] or 0), 1) == 2.6


def test_reserving_the_whole_length_wastes_most_of_it() -> None:
    """Lengths 300, 2,000, 600 and 4,400 at a limit of 8,192: 77.7 % wasted, paged under 1 %."""
    question = asked(lengths=lengths.of_sample([300, 2000, 600, 4400], "x"))
    wasted = {row.key: row.wasted for row in rows(question)}
    assert round(100 * wasted["grouped_query"], 1) == 77.7
    assert 0 < wasted["paged_in_blocks"] < 0.01
    assert wasted["paged_in_blocks"] == pytest.approx(1 - 1825 / 1828)


def test_a_shared_prefix_is_kept_once_inside_the_cache() -> None:
    """Field case I3. By hand: the prefix's 125 blocks are taken from the cache, each user brings the rest."""
    question = asked(cache=10 * GIB, shared=2000)
    left = 10 * GIB - 2000 * 131_072
    assert users(question)["shared"] == int(left // ((2275 + 7.5 - 2000) * 131_072))
    assert users(question)["paged_in_blocks"] == int(10 * GIB // ((2275 + 7.5) * 131_072))


def test_the_cache_is_what_weights_and_overhead_leave() -> None:
    """Field case I3: there is no other store beside it."""
    got = figures(plan(asked(overhead=3 * GIB), "x"))
    assert got["cache"] == 80 * GIB * 0.9 - 2 * 8_030_261_248 - 3 * GIB
    assert got["cache"] == (got["usable"] or 0) - (got["weights"] or 0) - (got["overhead"] or 0)


def test_a_model_that_does_not_fit_names_the_way_out() -> None:
    with pytest.raises(PlanError, match=r"leaves no cache on 1 x h100: 131\.4 GiB of weights .*parallel-size 2"):
        plan(asked(model="llama-3.1-70b"), "x")
    with pytest.raises(PlanError, match="take a larger card"):
        plan(asked("t4", model="llama-3.1-405b"), "x")


def test_the_sample_decides_and_not_only_its_mean() -> None:
    """A window keeps no more than it sees, so that long sequences cost less than their mean says (field case I2)."""
    apart, alike = lengths.of_sample([100, 8000], "x"), lengths.of_mean(4050)
    mistral = asked(model="mistral-7b-v0.1", cache=10 * GIB)
    by_hand = 10 * GIB // ((112 + 4096) / 2 * 131_072)
    assert users(replace(mistral, lengths=apart))["paged_in_blocks"] == by_hand
    assert users(replace(mistral, lengths=alike))["paged_in_blocks"] < by_hand


@given(st.sampled_from(models()), st.integers(1, 8192), st.sampled_from(["bfloat16", "fp8", "int8"]))
def test_no_user_is_promised_that_does_not_fit(shape: object, mean: int, store: str) -> None:
    question = replace(asked(store=store, cache=20 * GIB, lengths=lengths.of_mean(mean)), shape=shape)  # type: ignore[arg-type]
    for row in rows(question):
        assert row.users * row.each <= 20 * GIB < (row.users + 1) * row.each
        assert 0 <= row.wasted < 1


def test_break_even_by_search() -> None:
    """A 1 GB/s disk under an H100: no prefix shorter than the figure wins, every longer one does."""
    question = asked("h100")

    def wins(tokens: int) -> bool:
        read = sequence_bytes(question.shape, tokens, "bfloat16") / 1e9
        return read < prefill_seconds(question, tokens) + attention_seconds(question, tokens)

    tokens = break_even(question, 1e9)
    assert tokens is not None
    assert [wins(at) for at in (1, tokens - 1, tokens, tokens + 1, 10 * tokens)] == [False, False, True, True, True]
    assert break_even(question, 64e9) == 1
    assert break_even(asked(model="mistral-7b-v0.1"), 1e3) is None


def test_where_decoding_is_bound() -> None:
    """989 TFLOP/s by 3.35 TB/s: 295 sequences, if keys and values took nothing. With 2,275 tokens each, never."""
    got = figures(plan(asked(), "x"))
    assert round(got["compute_bound_batch"] or 0) == 295
    assert got["compute_bound_batch_with_context"] is None


def test_a_share_of_the_peak_is_taken_everywhere() -> None:
    full, half = (figures(plan(asked(flops_share=share, bandwidth_share=share), "x")) for share in (1, 0.5))
    for key in ("prefill", "prefill_attention", "single_token", "batch_token"):
        assert half[key] == pytest.approx(2 * (full[key] or 0))
    assert half["tokens_per_second"] == pytest.approx((full["tokens_per_second"] or 0) / 2)


def test_percentiles_are_straight_lines() -> None:
    """From 1 through 800 at the middle to 2,000: by hand the mean of two trapezoids, 900.25."""
    got = lengths.of_percentiles("p50=800", 2000)
    assert got.mean == pytest.approx(0.5 * 400.5 + 0.5 * 1400, abs=0.5)
    assert min(got.sample) >= 1
    assert max(got.sample) <= 2000
    assert sorted(got.sample) == list(got.sample)
    for bad in ("p50", "p0=1", "p50=900,p90=800", "p50=1,p50=2", "p50=3000", "mean=2"):
        with pytest.raises(PlanError):
            lengths.of_percentiles(bad, 2000)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"limit": 9000}, "--max-model-len 9000 is beyond llama-3-8b's 8192"),
        ({"limit": 2000}, "a length of 2275 tokens is beyond --max-model-len 2000"),
        ({"shared": 2275}, "--shared-prefix 2275 is not shorter"),
        ({"prompt": 8193}, "--prompt 8193 is beyond"),
    ],
)
def test_questions_that_do_not_fit_together(changes: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        plan(asked(**changes), "x")


def test_every_figure_can_be_explained_and_fits_in_80_columns() -> None:
    for model in ("llama-3-8b", "gpt-oss-20b", "smollm2-1.7b"):
        report = plan(asked(model=model, shared=1000, host=64 * GIB), "some/model")
        for text in (as_text(report), explain(report, None)):
            assert max(map(len, text.splitlines())) <= 80
        for key, figure in report.figures.items():
            assert figure.formula in " ".join(explain(report, key).split())
    with pytest.raises(PlanError, match="there is no figure 'nothing'"):
        explain(report, "nothing")


def test_files_of_known_size_go_before_formats() -> None:
    line = Roofline(find_model("mixtral-8x7b"), find_accelerator("h100"), "bfloat16", "bfloat16", files=1e10)
    assert line.weight_bytes == 1e10
    assert line.read_weights(10_000) < 1e10
    assert line.read_weights(1) == pytest.approx(1e10 * 12.88 / 46.7, rel=0.02)


def test_what_is_left_of_a_sequence_keeps_its_windows() -> None:
    """gpt-oss-20b, 10,000 tokens of which 1,600 are shared: 12 layers keep 8,400 of their own, 12 the last 128."""
    question = asked(model="gpt-oss-20b", limit=10_000, lengths=lengths.of_sample([10_000], "x"), shared=1600)
    row = next(row for row in rows(replace(question, cache=GIB)) if row.key == "shared")
    assert row.each == 12 * (8400 + 128) * 2048
    assert row.users == (GIB - 12 * (1600 + 128) * 2048) // row.each


@pytest.mark.parametrize("shared", [0, 512])
def test_the_planners_concurrency_is_the_memory_managers(shared: int) -> None:
    """The real manager admits a sample of lengths, over and over, until it is full: over 200 residents, within 2 %."""
    rng = random.Random(3)
    question = asked(model="smollm2-135m", cache=600 * 2**20, shared=shared)
    sample = [max(shared + 1, min(8192, round(rng.lognormvariate(4.2, 0.8) + shared))) for _ in range(20)]
    question = replace(question, lengths=lengths.of_sample(sample, "x"))
    manager = MemoryManager(question.cache // (16 * 23_040), 16)  # type: ignore[operator]
    head, fresh = pack(range(shared)), shared
    residents = 0
    for length in cycle(sample):
        own = range(fresh, fresh + length - shared)
        fresh = own.stop
        try:
            manager.mark_stored(manager.admit(DEFAULT, head + pack(own)), length)
        except NoSpaceError:
            break
        residents += 1
    planned = users(question)["shared" if shared else "paged_in_blocks"]
    assert residents > 200
    assert planned == pytest.approx(residents, rel=0.02)
