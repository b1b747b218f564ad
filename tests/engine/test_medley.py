"""Every kind of request, call and disturbance at once: each answer has the bits of the request alone.

Requests with n, beams, forms, stop strings, penalties and log-probabilities, of texts and of rows, some of them left,
aborted or cancelled;
beside them sleeps of all levels, partial wake-ups, the same weights anew, reloading, resets, questions.
"""

import asyncio
import contextlib
import random
from collections import Counter

import pytest
from safetensors.torch import load_file

from lullm import LLM, AsyncLLMEngine, EngineConfig, SamplingParams, StructuredOutputsParams
from lullm.errors import EngineAsleepError, InvalidRequestError, SleepCancelledError
from lullm.ops.cpu.library import absence
from lullm.types.outputs import KV_CACHE_FULL
from lullm.types.sampling_params import OutputKind
from lullm.weights.folder import DEMO_FOLDER

pytestmark = pytest.mark.skipif(absence() is not None, reason="torch's own products follow the batch")

PREFIX = "Once upon a time, a quiet farmer named Tom lived in a far away castle. Tom loved songs. "
WORDS = ["Once", "upon", "a", "time", "there", "was", "little", "dog", "What", "is", "the", "capital", "17", "+", "="]
EXTRAS = (
    {"n": 3}, {"logprobs": 2}, {"prompt_logprobs": 1}, {"presence_penalty": 0.5, "repetition_penalty": 1.2},
    {"stop": ["the", "."]}, {"top_k": 10, "top_p": 0.8}, {"bad_words": ["a", "the"]}, {"logit_bias": {5: 3.0}},
    {"structured_outputs": StructuredOutputsParams(regex="[a-h ]{3,30}")}, {"detokenize": False}, {"best_of": 2},
)  # fmt: skip
ALONE = {
    "model": "demo", "max_model_len": 256, "threads": 1, "num_gpu_blocks_override": 256, "block_size": 8,
    "enable_prompt_embeds": True,
}  # fmt: skip
CASES = [
    {"num_gpu_blocks_override": 40, "swap_space": 0.001, "scheduling_policy": "priority", "sleep_after": "30ms:1"},
    {"num_gpu_blocks_override": 70, "max_num_batched_tokens": 64, "max_num_seqs": 8, "auto_wake": True},
    {"num_gpu_blocks_override": 40, "data_parallel_size": 2, "async_scheduling": True, "auto_wake": True},
]


def some_requests(source):
    """By number: a prompt and its parameters."""
    found = []
    table = load_file(DEMO_FOLDER / "model.safetensors")["model.embed_tokens.weight"]
    for _ in range(30):
        prompt = PREFIX * source.choice((0, 1, 2)) + " ".join(source.choices(WORDS, k=source.randrange(1, 30)))
        fields = {"temperature": source.choice((0.0, 0.0, 0.8, 1.5)), "max_tokens": source.choice((1, 4, 20, 60))}
        fields |= {"seed": source.randrange(1 << 40), "ignore_eos": source.random() < 0.6}
        for extra in source.sample(EXTRAS, source.choice((0, 1, 2))):
            fields |= extra
        if source.random() < 0.1:
            fields = {"beam_width": 3, "n": 2, "max_tokens": source.choice((2, 10))}
        if source.random() < 0.25 and "prompt_logprobs" not in fields:
            num = source.choice((0, 24)), source.randrange(1, 60)  # a common start, and rows of its own
            prompt = {"prompt_embeds": table[[*range(50, 50 + num[0]), *source.choices(range(3, 300), k=num[1])]]}
        kind = OutputKind.FINAL_ONLY if fields.keys() & {"best_of", "beam_width"} else source.choice(list(OutputKind))
        with contextlib.suppress(InvalidRequestError):  # best_of below n, stop strings without a text
            found.append((prompt, SamplingParams(**fields, output_kind=kind)))
    return found


def logprobs(positions):
    return positions and [
        at and {token_id: (one.logprob, one.rank) for token_id, one in at.items()} for at in positions
    ]


def answer(outputs, kind):
    """What all outputs of a request say together: of each completion, and of the prompt."""
    told = {}
    for output in outputs if kind is OutputKind.DELTA else outputs[-1:]:
        for one in output.outputs:
            text, token_ids, values, end = told.get(one.index, ("", (), [], None))
            assert end is None, "nothing comes behind the end"
            end = one.finish_reason and (one.finish_reason, one.stop_reason)
            told[one.index] = (
                text + one.text,
                token_ids + tuple(one.token_ids),
                values + [*logprobs(one.logprobs or [])],
                end,
            )
    of_prompt = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
    assert kind is not OutputKind.DELTA or len(of_prompt) <= 1, "said once"
    return told, logprobs(of_prompt[-1]) if of_prompt else None


@pytest.fixture(scope="module")
def expected():
    """Requests, and the answer to each alone."""
    with LLM(**ALONE, enable_prefix_caching=False) as llm:
        asked = some_requests(random.Random(5))
        return [
            (prompt, params, answer(llm.generate(prompt, params, use_tqdm=False), OutputKind.FINAL_ONLY))
            for prompt, params in asked
        ]


class Medley:
    """One engine's hour, in seconds."""

    def __init__(self, engine, expected, source):
        self.engine = engine
        self.expected = expected
        self.source = source
        self.counts = Counter()
        self.weights = list(load_file(DEMO_FOLDER / "model.safetensors").items())

    async def run(self, num_clients, num_requests):
        numbers = iter(range(num_requests))
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            clients = [group.create_task(self._client(numbers)) for _ in range(num_clients)]
            disturbers = [group.create_task(self._disturb()) for _ in range(2)]
            await asyncio.wait(clients)
            for each in disturbers:
                each.cancel()
        await self.engine.wake_up()
        async with asyncio.timeout(20):
            while self.engine.stats().num_used_blocks:
                await asyncio.sleep(0.002)

    async def _client(self, numbers):
        for number in numbers:
            prompt, params, alone = self.source.choice(self.expected)
            way = self.source.choices(("end", "leave", "abort", "cancel"), (8, 1, 1, 1))[0]
            outputs = []
            reading = self._read(outputs, prompt, params, str(number), way)
            try:
                await asyncio.wait_for(reading, self.source.random() * 0.3 if way == "cancel" else None)
            except TimeoutError:
                pass
            except EngineAsleepError:
                assert not outputs, "refused at the first item only"
                way = "refused"
                await asyncio.sleep(0.01)
            if way == "end":
                found = answer(outputs, params.output_kind)
                if any(end[1] == KV_CACHE_FULL for *_, end in found[0].values()):
                    way = "full"
                else:
                    assert found == alone, (prompt, params)
            self.counts[way] += 1

    async def _read(self, outputs, prompt, params, request_id, way):
        priority = self.source.randrange(3) if self.engine.config.scheduling_policy == "priority" else 0
        stream = self.engine.generate(prompt, params, request_id, priority=priority)
        async with contextlib.aclosing(stream):
            async for output in stream:
                outputs.append(output)
                if way == "leave" and len(outputs) == 3:
                    return
                if way == "abort" and len(outputs) == 2:
                    await self.engine.abort(request_id)

    async def _disturb(self):
        source, engine = self.source, self.engine
        acts = {
            "sleep": self._sleep,
            "reset": engine.reset_prefix_cache,
            "update": lambda: engine.update_weights(source.sample(self.weights, 3)),
            "reload": lambda: engine.collective_rpc("reload_weights"),
            "ask": lambda: engine.occupancy(50),
            "explain": lambda: engine.explain_sleep(1),
        }
        while True:
            await asyncio.sleep(source.random() * 0.1)
            name = source.choice(["sleep", *acts])
            with contextlib.suppress(SleepCancelledError, EngineAsleepError):
                await acts[name]()
                self.counts[name] += 1

    async def _sleep(self):
        source = self.source
        mode, tags = source.choice(("keep", "keep", "wait")), source.choice((None, None, ["kv_cache"], ["weights"]))
        await self.engine.sleep(source.choice((0, 1, 1, 2)), mode=mode, tags=tags)
        await asyncio.sleep(source.random() * 0.02)
        await self.engine.wake_up(source.choice((None, ["weights"], ["kv_cache"])))
        await self.engine.wake_up()


@pytest.mark.parametrize("case", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_answer_is_that_of_the_request_alone(expected, case):
    engine = AsyncLLMEngine(EngineConfig(**ALONE | {"enable_sleep_mode": True} | CASES[case]))
    medley = Medley(engine, expected, random.Random(case))

    async def main():
        try:
            await medley.run(num_clients=10, num_requests=60)
        finally:
            await engine.shutdown(drain=False)

    asyncio.run(main())
    assert medley.counts["end"] > 20 and medley.counts["sleep"], medley.counts
