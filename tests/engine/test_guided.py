"""Guided decoding through the whole engine: every finished output has its form, and no disturbance changes a token."""

import json
import random
import re

import jsonschema
import pytest

from lullm import LLM, SamplingParams, StructuredOutputsParams
from lullm.config.engine import EngineConfig
from lullm.engine.llm_engine import LLMEngine
from lullm.errors import InvalidRequestError
from lullm.ops.cpu.library import absence
from lullm.sampling.sampler import Sampler
from lullm.text.guided.matchers import Matchers

NUM_SCHEMAS = 500


def random_schema(rng, depth=0):
    """A schema of the kinds that people send."""
    kinds = ["integer", "string", "boolean", "enum", "number", "null"]
    kind = rng.choice(kinds if depth > 2 else [*kinds, "object", "object", "array", "anyOf"])
    if kind == "object":
        names = [f"{rng.choice('abcdefgh')}{i}" for i in range(rng.randint(1, 4))]
        schema = {"type": "object", "properties": {name: random_schema(rng, depth + 1) for name in names}}
        schema["required"] = rng.sample(names, rng.randint(0, len(names)))
        return schema | rng.choice([{}, {"additionalProperties": False}])
    if kind == "array":
        low = rng.randint(0, 2)
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": low, "maxItems": low + 2}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
    if kind == "enum":
        return {"enum": rng.sample(["red", "green", 3, None, True, "a b", 1.5], 3)}
    if kind == "integer":
        return {"type": kind, "minimum": rng.randint(-9, 0), "maximum": rng.randint(1, 500)}
    if kind == "string":
        low = rng.randint(0, 3)
        return {"type": kind, "minLength": low, "maxLength": low + rng.randint(1, 12)}
    return {"type": kind}


@pytest.fixture(scope="module")
def llm():
    with LLM("demo", max_model_len=256, max_num_seqs=64, enable_sleep_mode=True) as llm:
        yield llm


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_random_schemas(llm, temperature):
    """Every output that ends by itself fits its schema; the others were cut at max_tokens."""
    rng = random.Random(5)
    schemas = [random_schema(rng) for _ in range(NUM_SCHEMAS // 2)]
    params = [
        SamplingParams(
            temperature=temperature, seed=i, max_tokens=80, structured_outputs=StructuredOutputsParams(json=schema)
        )
        for i, schema in enumerate(schemas)
    ]
    outputs = llm.generate([[1, 5 + i % 50] for i in range(len(schemas))], params, use_tqdm=False)
    num_finished = 0
    for schema, output in zip(schemas, outputs, strict=True):
        [completion] = output.outputs
        if completion.finish_reason == "stop":
            num_finished += 1
            jsonschema.validate(json.loads(completion.text), schema)
    assert num_finished > 0.6 * len(schemas)


FORMS = [
    {"json": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}},
    {"regex": r"[a-f]{4}(-\d{3}){2,8}"},
    {"choice": ["yes, of course", "no, never", "maybe"]},
    {"json_object": True},
]


def requests():
    """Guided ones of four forms, n of 1 to 3, among plain ones."""
    for i in range(24):
        form = {} if i % 3 == 0 else {"structured_outputs": StructuredOutputsParams(**FORMS[i % 4])}
        yield (
            f"r{i}",
            [1, 7 + i, 30 + i % 5],
            SamplingParams(
                temperature=(0.0, 1.0)[i % 2],
                top_p=0.8 if i % 5 == 0 else 1.0,
                seed=i,
                n=1 + i % 3,
                max_tokens=60,
                **form,
            ),
        )


def run(disturb=lambda engine, number: None, **options):
    engine = LLMEngine(EngineConfig.from_options({"model": "demo", "max_model_len": 256, **options}))
    for request_id, prompt, params in requests():
        engine.add_request(request_id, prompt, params)
    found, number = {}, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                found[output.request_id] = [(c.token_ids, c.finish_reason) for c in output.outputs]
        number += 1
        disturb(engine, number)
    engine.shutdown()
    return found


def sleep_and_wake(engine, number):
    if number % 10 == 0 and engine.has_unfinished_requests():
        engine.sleep(level=1 + number % 20 // 10, mode="keep")
        engine.wake_up()


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 64, "max_num_seqs": 8},
        {"num_gpu_blocks_override": 24, "block_size": 16, "enable_prefix_caching": False},
        {"num_gpu_blocks_override": 24, "block_size": 16, "preemption_mode": "swap", "swap_space": 0.1},
        {"enforce_eager": True},
    ],
)
def test_no_disturbance_changes_a_token(options):
    """Chunks, waiting, preemption by recomputing and by swapping, sleeps, eager steps."""
    assert run(sleep_and_wake, enable_sleep_mode=True, **options) == run()


def test_choosing_before_the_mask_changes_no_token(monkeypatch):
    """Tokens that the grammar takes as they come, those that are chosen again, and masks laid on the logits."""
    expected, masked = run(), []
    allowed = Matchers.allowed
    monkeypatch.setattr(Matchers, "allowed", lambda self, rows: masked.append(len(rows)) or allowed(self, rows))
    assert run() == expected
    num_first = sum(masked)
    monkeypatch.setattr(Sampler, "_is_apart", lambda self, draw: False)
    masked.clear()
    assert run() == expected
    assert sum(masked) > num_first or absence() is not None, "many tokens need no mask"


def test_streaming_gives_the_same(llm):
    params = SamplingParams(
        temperature=1.0, seed=3, max_tokens=50, structured_outputs=StructuredOutputsParams(**FORMS[1])
    )
    [whole] = llm.generate("x", params, use_tqdm=False)
    assert re.fullmatch(FORMS[1]["regex"], whole.outputs[0].text)
    engine = llm.llm_engine
    engine.add_request("stream", "x", params)
    texts = []
    while engine.has_unfinished_requests():
        texts += [output.outputs[0].text for output in engine.step()]
    assert texts[-1] == whole.outputs[0].text and all(texts[-1].startswith(text) for text in texts)


def test_a_form_that_becomes_too_large_ends_no_text(llm):
    """The text was cut where the library gave up, with the reason 'stop'."""
    params = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(regex="[bc]a{1000000}"))
    [output] = llm.generate("x", params, use_tqdm=False)[0].outputs
    assert output.finish_reason == "abort" and "(structured_outputs) became too large" in output.stop_reason


def test_beside_other_restrictions(llm):
    """min_tokens yields where the grammar has ended; a bad word and a bias apply within it."""
    yes_no = StructuredOutputsParams(choice=["yes", "no"])
    common = {"temperature": 0.0, "structured_outputs": yes_no}
    [output] = llm.generate("x", SamplingParams(min_tokens=10, max_tokens=12, **common), use_tqdm=False)
    assert output.outputs[0].text in ("yes", "no")
    best = output.outputs[0].text
    [output] = llm.generate("x", SamplingParams(bad_words=[best], max_tokens=12, **common), use_tqdm=False)
    assert output.outputs[0].finish_reason == "stop"
    [output] = llm.generate("x", SamplingParams(logprobs=2, max_tokens=12, **common), use_tqdm=False)
    assert len(output.outputs[0].logprobs) == len(output.outputs[0].token_ids)


def test_refused(llm):
    with pytest.raises(InvalidRequestError, match="beam"):
        SamplingParams(beam_width=2, structured_outputs=StructuredOutputsParams(regex="a"))
    with pytest.raises(InvalidRequestError, match="give one of them"):
        SamplingParams(allowed_token_ids=[1], structured_outputs=StructuredOutputsParams(regex="a"))
    with pytest.raises(InvalidRequestError, match="StructuredOutputsParams"):
        SamplingParams(structured_outputs={"regex": "a"})
    with pytest.raises(InvalidRequestError, match="regex"):
        llm.generate("x", SamplingParams(structured_outputs=StructuredOutputsParams(regex="(a")))
    assert llm.generate("x", SamplingParams(max_tokens=1), use_tqdm=False)[0].finished
