"""What a request does with the cache, step by step: prefixes kept for a time, nothing stored, tenants' counts."""

from __future__ import annotations

from dataclasses import replace

from simulated_engine import SimulatedEngine, request

from pageinn.memory.manager import MemoryManager
from pageinn.memory.retention import Retain
from pageinn.memory.scopes import Scope
from pageinn.memory.shares import OTHER_LABEL, Share
from pageinn.scheduling.config import AdmissionMode, SchedulerConfig
from pageinn.scheduling.plan import Arrive, Plan, Request, TenantCounters
from pageinn.scheduling.scheduler import Scheduler

A, B = Scope("a"), Scope("b")


def finish(scheduler: Scheduler, plan: Plan, now: float) -> int:
    """Run until nothing is left, each step a hundredth of a second; how many tokens of the prompt are retained."""
    retained = 0
    while True:
        sampled = {work.seat: 5 for work in plan.work if work.sample}
        outcomes = scheduler.commit(plan, sampled)
        retained = max([retained, *(outcome.retained_tokens for outcome in outcomes)])
        scheduler.memory.check()
        if scheduler.idle:
            return retained
        now += 0.01
        plan = scheduler.schedule(now, [])


def test_a_prefix_is_kept_from_the_step_that_stored_it() -> None:
    """The prompt is computed in chunks of 32: a breakpoint holds once its last block is stored, and for 300 seconds."""
    memory = MemoryManager(40, 4)
    scheduler = Scheduler(SchedulerConfig(8, 32, 1000), memory)
    asked = replace(request("r", list(range(70)), scope=A), retain=(Retain(40, 300.0), Retain(66, 3600.0)))
    plan = scheduler.schedule(1000.0, [Arrive(asked)])
    scheduler.commit(plan, {})
    assert memory.tree.num_held == 0
    plan = scheduler.schedule(1001.0, [])
    scheduler.commit(plan, {})
    assert memory.tree.num_held == 10
    assert finish(scheduler, scheduler.schedule(1002.0, []), 1002.0) == 40, (
        "beyond a quarter of the pool, 64 are not kept"
    )
    scheduler.schedule(1300.9, [])
    assert memory.tree.num_held == 10
    scheduler.schedule(1301.0, [])
    assert memory.tree.num_held == 0
    counters = memory.retention.counters
    assert (counters.kept, counters.capped, counters.expired) == (1, 1, 1)


def test_what_is_not_stored_is_computed_by_each_choice_and_leaves_nothing() -> None:
    """Three choices that share nothing, preempted or not: right answers, and an empty cache."""
    answers = []
    for store in (True, False):
        sim = SimulatedEngine(MemoryManager(30, 4), SchedulerConfig(8, 64, 1000, admission=AdmissionMode.OPTIMISTIC))
        sim.arrive(replace(request("r", list(range(1, 30)), 20, n=3), store=store, read_cache=store))
        sim.run()
        answers.append(sim.answers)
        assert (sim.memory.usage().kept == 0) is not store
    assert answers[0] == answers[1]
    assert sim.counters["preemptions"] > 0, "36 blocks were wanted of 30"


def test_counts_by_tenant_are_few_and_add_up() -> None:
    """Queries, hits and preemptions of configured tenants, and of all others together."""
    memory = MemoryManager(12, 4)
    memory.configure_shares({"a": Share()})
    sim = SimulatedEngine(memory, SchedulerConfig(8, 64, 1000, admission=AdmissionMode.OPTIMISTIC))
    for turn in range(2):
        for scope in (A, B, Scope("c")):
            sim.arrive(request(f"{turn} {scope.tenant}", [1, 2, 3, 4, 5, 6, 7, 8, 9], 2, scope=scope))
            sim.run()
    tenants = sim.scheduler.counters.tenants
    assert tenants == {"a": TenantCounters(18, 8, 10), OTHER_LABEL: TenantCounters(36, 16, 20)}
    for name, scope in (("first", A), ("second", B)):
        sim.arrive(request(name, [50] * 16, 16, scope=scope))
    sim.run()
    assert sum(tenant.preemptions for tenant in tenants.values()) == sim.counters["preemptions"] > 0
    computed = [tenant.computed_prompt_tokens for tenant in tenants.values()]
    assert sum(computed) == sim.counters["computed_prompt_tokens"]


def test_a_request_beyond_its_tenants_maximum_is_refused() -> None:
    memory = MemoryManager(40, 4)
    memory.configure_shares({"a": Share(0.0, 0.25)})
    scheduler = Scheduler(SchedulerConfig(8, 64, 1000), memory)

    def wanted(scope: Scope) -> Request:
        return request("r", list(range(41)), scope=scope)

    assert scheduler.refusal(wanted(B)) is None
    refusal = scheduler.refusal(wanted(A))
    assert refusal == "the request needs 41 token slots and its tenant may use 40; shorten it"
