"""Why a match ended, without a server: what came before and what beside, and how much is looked at."""

from __future__ import annotations

import tracemalloc

import pytest

from pageinn.explain.parts import Part
from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.memory.tokens import pack
from pageinn.misses.history import MOST_BYTES, MOST_RECORDS, History
from pageinn.misses.reasons import part_name
from pageinn.misses.record import Asked, End
from pageinn.misses.recorder import Cache, Recorder
from pageinn.misses.shown import misses
from pageinn.misses.thrift import MOST_SECONDS, SHARE, Thrift

RULES = " ".join(f"Rule {i} is about shelf {i * 3}." for i in range(40))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(clock: Clock) -> Recorder:
    """One token for each character."""
    return Recorder(Cache(16, keeps=True), lambda tokens: "".join(map(chr, tokens)), clock)


def asked(text: str, name: str = "", scope: Scope = DEFAULT, why_not: str = "", stores: bool = True) -> Asked:
    return Asked(name or text[:8], scope, pack(map(ord, text)), why_not, stores)


def run(recorder: Recorder, text: str, cached: int = 0, **fields):
    return recorder.begin(recorder.open(asked(text, **fields)), cached)


def test_what_came_before_and_is_not_found_was_evicted(recorder) -> None:
    run(recorder, RULES)
    record = run(recorder, RULES + "?", cached=32)
    assert (record.end, record.shared) == (End.EVICTED, len(RULES))


def test_what_was_computed_beside_was_not_evicted(recorder) -> None:
    """The second comes before the first has its first token, so that nothing of it was there to be found."""
    second = recorder.open(asked(RULES + " B"))
    run(recorder, RULES + " A")
    assert recorder.begin(second, 0).end is not End.EVICTED


def test_what_it_waited_for_counts(recorder) -> None:
    """A follower finds what was computed after it came."""
    second = recorder.open(asked(RULES + " And B?"))
    run(recorder, RULES + " And A?")
    record = recorder.begin(second, len(RULES) // 16 * 16)
    recorder.look_at_all()
    assert (record.end, record.fault, record.shared) == (End.PARTED, None, len(RULES) + 5)


def test_what_is_not_kept_is_not_called_evicted(clock) -> None:
    recorder = Recorder(Cache(16, keeps=False), lambda tokens: "".join(map(chr, tokens)), clock)
    run(recorder, RULES)
    assert run(recorder, RULES).end is End.NOT_KEPT


def test_what_was_not_stored_is_not_missed(recorder) -> None:
    run(recorder, RULES, stores=False)
    record = run(recorder, RULES)
    recorder.look_at_all()
    assert (record.end, record.fault) == (End.NEW, None)


def test_more_than_any_record_explains(recorder) -> None:
    """Found on disk, say, from before the server started."""
    record = run(recorder, RULES, cached=160)
    recorder.look_at_all()
    assert record.end is End.UNKNOWN


def test_a_nonce_at_the_head_is_named_though_nothing_is_shared(recorder) -> None:
    """Field case H1: the prompts share not one token, and the earlier one is found by what follows."""
    run(recorder, f"7f3a9c2e4b1d\n{RULES}")
    run(recorder, "Another question altogether, of which nothing is like it. " * 4)
    record = run(recorder, f"b81c55d0e9aa\n{RULES}", name="second")
    recorder.look_at_all()
    assert record.fault is not None
    assert (str(record.fault.parting.kind), record.fault.position, record.fault.line) == ("id", 0, 1)
    # All that follows the line is the same.
    assert record.fault.lost == pytest.approx(len(RULES), rel=0.02)


def test_a_loss_is_not_counted_where_another_request_left_what_follows(recorder) -> None:
    """The minute came round again: the prompt parts from the newest by its clock, but was found all the same."""
    run(recorder, f"It is 12:01.\n{RULES}")
    run(recorder, f"It is 12:02.\n{RULES}")
    record = run(recorder, f"It is 12:01.\n{RULES} Why?", cached=len(RULES))
    recorder.look_at_all()
    assert record.fault is None


def test_json_nested_too_deep_is_text(recorder) -> None:
    """A client may send anything, and what it sends is not to keep others from being told."""
    deep = '"parameters": {"type": ' + "[" * 5000
    run(recorder, f"It is 12:01.\n{deep}\n{RULES}")
    record = run(recorder, f"It is 12:02.\n{deep}\n{RULES}")
    assert recorder.look_at_all() == 0
    assert record.fault is not None
    assert str(record.fault.parting.kind) == "clock"


def test_a_prompt_that_cannot_be_read_keeps_no_other_from_being_told(clock, caplog) -> None:
    def decode(tokens: list[int]) -> str:
        text = "".join(map(chr, tokens))
        if "Unreadable" in text:
            raise ValueError(len(text))
        return text

    recorder = Recorder(Cache(16, keeps=True), decode, clock)
    run(recorder, f"It is 12:01.\n{RULES}")
    told = run(recorder, f"It is 12:02.\n{RULES}")
    untold = run(recorder, f"It is 12:03.\n{RULES} Unreadable", name="third")
    assert misses(recorder, 3, False)["pending"] == 0
    assert (told.fault is None, untold.fault) == (False, None)
    (line,) = [each.getMessage() for each in caplog.records if each.name.endswith("recorder")]
    assert line == "why request third missed cannot be read from its text"


def test_a_record_that_loses_its_tokens_while_it_is_looked_at(clock) -> None:
    """More requests come meanwhile, and there is no room for its tokens any more."""
    looking = False

    def decode(tokens: list[int]) -> str:
        for other in recorder.history if looking else ():
            other.packed = b""
        return "".join(map(chr, tokens))

    recorder = Recorder(Cache(16, keeps=True), decode, clock)
    run(recorder, f"It is 12:01.\n{RULES}")
    record = run(recorder, f"It is 12:02.\n{RULES}")
    recorder.deploys.close()
    looking = True
    recorder.look_at_all()
    assert record.fault is not None
    assert (str(record.fault.parting.kind), record.fault.position) == ("clock", 10)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (Part("message", 2, "user"), "message 2 (user)"),
        (Part("message", 2, "Geheimnis\u00e4"), "message 2"),
        (Part("tool", 1, "user"), "tool 1"),
        (Part("system", 1, "system"), "system"),
    ],
)
def test_a_part_is_named_without_text_of_the_prompt(part: Part, name: str) -> None:
    """Whoever writes a chat template's marks into a prompt may write any word between them."""
    assert part_name(part, show_text=False) == name
    assert part_name(part, show_text=True) == str(part)


def test_an_answer_does_not_wait_until_all_others_are_looked_at(recorder) -> None:
    run(recorder, f"It is 12:01.\n{RULES}")
    run(recorder, f"It is 12:02.\n{RULES}", name="mine")
    with recorder._looking:
        record = recorder.look_at("mine")
    assert record is not None
    assert record.pending
    recorder.look_at("mine")
    assert record.fault is not None


def test_looking_is_bounded_and_pays_back(clock, recorder) -> None:
    for minute in range(10, 40):
        run(recorder, f"It is 12:{minute}.\n{RULES}")
    recorder._thrift.spent(MOST_SECONDS)
    assert recorder.look_at_all() == 30
    assert misses(recorder, 1, False)["pending"] == 30
    clock.now += 1000
    assert recorder.look_at_all() == 0
    (clock_reason,) = [one for one in misses(recorder, 1, True)["reasons"] if one["kind"] == "clock"]
    assert clock_reason["requests"] == 29
    assert clock_reason["detail"] == "minute"


def test_the_purse_fills_slowly_and_not_beyond_its_brim(clock) -> None:
    thrift = Thrift(clock)
    thrift.spent(thrift.allowance())
    clock.now += 10
    assert thrift.allowance() == pytest.approx(10 * SHARE)
    clock.now += 1e6
    assert thrift.allowance() == MOST_SECONDS
    clock.now -= 1e6
    assert thrift.allowance() == MOST_SECONDS


def test_the_stated_memory_holds() -> None:
    """docs/operations.md: 16 MiB of tokens, and 24 MiB in all, looked at or not."""
    clock = Clock()
    recorder = Recorder(Cache(16, keeps=True), lambda tokens: "".join(chr(t) for t in tokens), clock, History())
    shared = list(map(ord, RULES * 20))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(MOST_RECORDS + 200):
        head = list(map(ord, f"Request {number:06d} at 12:{number % 60:02d}:{number % 59:02d}.\n"))
        record = recorder.begin(recorder.open(Asked(f"r{number}", DEFAULT, pack(head + shared), "", True)), 0)
        recorder.finish(record, shared[:500])
        if number % 200 == 0:
            clock.now += 1000
            recorder.look_at_all()
    clock.now += 1000
    recorder.look_at_all()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(recorder.history) == MOST_RECORDS
    assert recorder.history.nbytes <= MOST_BYTES
    assert held < MOST_BYTES + (8 << 20)
