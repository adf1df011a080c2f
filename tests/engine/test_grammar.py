"""Answers held to a schema: they parse, they validate, and nothing but the request decides what they are."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from engine_runs import OPTIMISTIC, ChoiceKey, alone, run, with_blocks
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.grammar import MAX_SCHEMA_BYTES, GrammarError, Grammars
from pageinn.engine.messages import Delta, FinishReason, GenerationRequest, RefusedError, SamplingParams
from pageinn.text.tokenizer import Tokenizer

STRING = {"type": "string", "maxLength": 12}
PERSON = {
    "type": "object",
    "properties": {"name": STRING, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "degrees": {"type": "number", "minimum": -90, "maximum": 60},
        "wind": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["unit", "degrees"],
    "additionalProperties": False,
}
COLOURS = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3}
DATE = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}
TREE = {
    "$defs": {
        "leaf": {"type": "object", "properties": {"leaf": STRING}, "required": ["leaf"], "additionalProperties": False}
    },
    "type": "object",
    "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}},
    "required": ["left", "right"],
    "additionalProperties": False,
}
SCHEMAS = [PERSON, WEATHER, COLOURS, DATE, TREE]


@pytest.fixture(scope="module")
def smollm2() -> Engine:
    return Engine(EngineConfig(kv_cache_memory_bytes=64 << 20, max_num_seqs=16, seed=1, threads=2))


@pytest.fixture(scope="module")
def tokenizer(smollm2: Engine) -> Tokenizer:
    return smollm2.tokenizer


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


def request(name: str, engine: Engine, schema: dict[str, Any], **fields: Any) -> GenerationRequest:
    text = f"<|im_start|>user\nAnswer in JSON.\n{json.dumps(schema)}<|im_end|>\n<|im_start|>assistant\n"
    defaults = {"max_tokens": 300, "temperature": 1.0, "json_schema": json.dumps(schema)}
    return GenerationRequest(name, tuple(engine.tokenizer.encode(text)), SamplingParams(**{**defaults, **fields}))


def test_200_answers_at_temperature_1_parse_and_validate(smollm2: Engine) -> None:
    """Five schemas in turn, 16 answers at a time, drawn from the whole vocabulary."""
    requests = [request(f"r{i}", smollm2, SCHEMAS[i % 5], n=4, logprobs=0) for i in range(50)]
    answers = run(smollm2, requests)
    assert len(answers) == 200
    for key, answer in answers.items():
        assert answer.finish is FinishReason.STOP, answer.text
        jsonschema.validate(json.loads(answer.text), SCHEMAS[int(key.request_id[1:]) % 5])
        assert answer.tokens[-1] in smollm2.tokenizer.eos_ids
        assert len(answer.logprobs) == len(answer.tokens)
    assert len({answer.text for answer in answers.values()}) > 100


def test_an_answer_cut_off_says_so(smollm2: Engine) -> None:
    sampling = SamplingParams(max_tokens=4, temperature=0.0, json_schema=json.dumps(PERSON))
    (answer,) = smollm2.generate(["Hello"], sampling)[0]
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.text.startswith("{")


def test_a_schema_that_grows_too_large_ends_its_answer_alone(smollm2: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What llguidance gives up in the middle is an error and never a cut-off answer; the one beside it goes on."""
    monkeypatch.setattr("pageinn.engine.grammar._MAX_LEXER_STATES", 40)
    schema = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^(a|b)*a(a|b){8}$"}}}
    large = request("large", smollm2, {**schema, "required": ["name"]}, max_tokens=60, seed=1)
    smollm2.core.submit(large)
    smollm2.core.submit(request("other", smollm2, DATE, max_tokens=60, seed=2))
    deltas = finish_with_deltas(smollm2)
    last = {delta.request_id: delta for delta in deltas if delta.finish_reason is not None}
    assert last["large"].finish_reason is FinishReason.ERROR
    assert "too many states" in (last["large"].error or "")
    assert last["other"].finish_reason is FinishReason.STOP
    assert smollm2.core.stats().blocks_in_use == 0


def test_answers_do_not_use_up_each_others_room(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers to a compiled schema share its lexer's states: one that finds none left starts over with its own."""
    monkeypatch.setattr("pageinn.engine.grammar._MAX_LEXER_STATES", 450)
    grammars = Grammars(tokenizer)
    letters = {exact: token for token, exact in enumerate(tokenizer.token_bytes) if len(exact) == 1}
    rng = random.Random(0)
    for _ in range(20):
        answer = grammars.start(json.dumps({"type": "string", "pattern": "^(a|b)*a(a|b){9}$"}))
        text = "".join(rng.choices("ab", k=60)) + "a" + "".join(rng.choices("ab", k=9))
        for char in f'"{text}"'.encode():
            assert answer.allowed()[letters[bytes([char])]]
            answer.push(letters[bytes([char])])
        assert answer.error is None
        assert answer.allowed()[min(tokenizer.eos_ids)]


def finish_with_deltas(engine: Engine) -> list[Delta]:
    deltas: list[Delta] = []
    while not engine.core.idle:
        deltas += engine.core.step()
    return deltas


def test_with_everything_else_that_steers(smollm2: Engine) -> None:
    """min_tokens gives way to a complete answer; biases and penalties choose among what the schema allows."""
    (red,) = smollm2.tokenizer.encode("red")
    sampling = SamplingParams(
        max_tokens=100,
        min_tokens=90,
        presence_penalty=2.0,
        repetition_penalty=1.5,
        logit_bias=((red, 100.0),),
        temperature=0.0,
        json_schema=json.dumps(COLOURS),
    )
    (answer,) = smollm2.generate(["Colours:"], sampling)[0]
    assert answer.finish_reason is FinishReason.STOP
    assert "red" in json.loads(answer.text)
    jsonschema.validate(json.loads(answer.text), COLOURS)


def test_nothing_but_the_request_decides(tiny_path: Path) -> None:
    """Field cases A4, B6: cold, warm, forked and preempted answers have the bits they have alone."""
    schemas = [{"type": "object", "properties": {"ab": STRING}, "required": ["ab"]}, {"type": "string"}]
    requests = [
        GenerationRequest(
            f"r{number}",
            tuple(range(260, 270 + 3 * number)),
            SamplingParams(max_tokens=25, n=1 + number % 3, seed=number, json_schema=json.dumps(schemas[number % 2])),
        )
        for number in range(10)
    ]
    expected = alone(EngineConfig(model=tiny_path, kv_cache_memory_bytes=8 << 20), requests)
    config = replace(OPTIMISTIC, max_num_seqs=16, max_num_batched_tokens=37, threads=2)
    engine = Engine(with_blocks(tiny_path, 14, config))
    for part in ("cold", "warm"):
        answers = run(engine, [replace(each, request_id=f"{each.request_id}/{part}") for each in requests])
        for key, answer in answers.items():
            alike = expected[ChoiceKey(key.request_id.removesuffix(f"/{part}"), key.index)]
            assert (answer.bits, answer.finish) == (alike.bits, alike.finish)
    assert engine.core.stats().preemptions > 0


def spelled(grammars: Grammars, tokenizer: Tokenizer, schema: object, tokens: Sequence[int]) -> bool:
    """Whether the masks let these tokens and then an end through."""
    answer = grammars.start(json.dumps(schema))
    for token in tokens:
        if not answer.allowed()[token]:
            return False
        answer.push(token)
    allowed = answer.allowed()
    assert answer.error is None
    control = {token for token, exact in enumerate(tokenizer.token_bytes) if not exact}
    assert not allowed[sorted(control - tokenizer.eos_ids)].any()
    return bool(allowed[sorted(tokenizer.eos_ids)].all())


# llguidance lets control characters through only as escapes, U+007F too, which JSON does not ask for.
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
PLAIN = [PERSON, COLOURS, {"type": "object"}, {"type": ["integer", "null"]}, {"type": "array", "maxItems": 2}]


@settings(max_examples=60, deadline=None)
@given(values, st.sampled_from(PLAIN), st.booleans())
def test_masks_let_through_what_validates_and_nothing_else(
    grammars: Grammars, tokenizer: Tokenizer, value: object, schema: dict[str, Any], spaced: bool
) -> None:
    """Over real tokens, with the tokenizer's own way of cutting a text, against the jsonschema package."""
    text = json.dumps(value, ensure_ascii=False, separators=None if spaced else (",", ":"))
    tokens = tokenizer.encode(text)
    # The vocabulary lacks a few bytes that begin characters nobody has assigned.
    assume(b"".join(tokenizer.token_bytes[token] for token in tokens) == text.encode())
    valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert spelled(grammars, tokenizer, schema, tokens) == valid


def test_a_complete_answer_can_only_end(grammars: Grammars, tokenizer: Tokenizer) -> None:
    answer = grammars.start('{"enum": ["yes"]}')
    for token in tokenizer.encode('"yes"'):
        answer.push(token)
    assert set(np.flatnonzero(answer.allowed()).tolist()) == tokenizer.eos_ids


def chained(count: int) -> dict[str, Any]:
    """Definitions, each of which refers to the next."""
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{count}": {"type": "integer"}}}


def test_long_chains_of_references_are_followed(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """So deep that the usual stack of a thread would overflow."""
    arrays: dict[str, Any] = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(1500)}
    for schema in (chained(1700), {"$ref": "#/$defs/d0", "$defs": {**arrays, "d1500": {"type": "integer"}}}):
        text = json.dumps(schema, separators=(",", ":"))
        assert MAX_SCHEMA_BYTES * 0.8 < len(text) < MAX_SCHEMA_BYTES
        assert not grammars.start(text).allowed().all()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "colour"}, "Invalid type: colour"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "Unsatisfiable"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
        ({"type": "string", "pattern": "("}, "regex parse error"),
        ({"$ref": "https://example.com/schema"}, "does not fetch"),
        ({"$ref": "#"}, "."),
        ({"type": "string", "description": "x" * MAX_SCHEMA_BYTES}, "bytes"),
        ({"allOf": [{"anyOf": [{"minLength": i * 9 + j} for j in range(4)]} for i in range(12)]}, "."),
    ],
)
def test_what_cannot_be_followed_is_refused_and_says_why(smollm2: Engine, schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason) as caught:
        smollm2.core.check(request("r", smollm2, schema))
    assert caught.value.param == "response_format"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_deep_nesting_is_refused(grammars: Grammars) -> None:
    with pytest.raises(GrammarError, match="recursion"):
        grammars.check('{"items": ' * 2000 + "{}" + "}" * 2000)


def test_a_complete_answer_has_to_end(smollm2: Engine) -> None:
    with pytest.raises(RefusedError, match="ignore_eos"):
        smollm2.core.check(request("r", smollm2, PERSON, ignore_eos=True))
