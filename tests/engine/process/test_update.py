"""`update_weights` of an engine in a process of its own: the tensors cross, and the engine draws with them."""

import asyncio

import pytest
import torch
from kit.engine.async_client import collect, tokens

from lullm import LLM, EngineConfig, SamplingParams
from lullm.engine.process.client import ProcessClient
from lullm.errors import EngineAsleepError, InvalidRequestError

OPTIONS = {"dtype": "float32", "max_model_len": 256, "num_gpu_blocks_override": 64}
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def client(qwen3_folder):
    found = ProcessClient(EngineConfig(model=str(qwen3_folder), threads=1, enable_sleep_mode=True, **OPTIONS))
    yield found
    found.shutdown(drain=False)


@pytest.fixture(scope="module")
def trained(qwen3_folder):
    """Weights of a trainer, under the checkpoint's names."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(qwen3_folder, dtype=torch.float32)
    return {name: (each + 0.05 * torch.randn_like(each)).detach() for name, each in model.named_parameters()}


async def drawn(client, request_id):
    outputs = await collect(client, "hello world", GREEDY, request_id)
    return list(outputs[-1].outputs[0].token_ids)


def test_an_update_is_that_of_an_engine_here(client, trained, qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        before = llm.generate("hello world", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
        num_weights = llm.update_weights(trained.items())
        after = llm.generate("hello world", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
        checksums = llm.collective_rpc("compute_weight_checksums")
        llm.reload_weights()
        [first], [then] = checksums, llm.collective_rpc("compute_weight_checksums")
        assert first.keys() == then.keys() and not set(first.values()) & set(then.values())
    assert list(before) != list(after)

    async def main():
        assert await drawn(client, "before") == list(before)
        assert await client.update_weights(trained.items()) == num_weights
        assert await drawn(client, "after") == list(after)
        assert await client.compute_weight_checksums() == checksums
        await client.sleep(1)
        with pytest.raises(EngineAsleepError):
            await client.compute_weight_checksums()
        await client.wake_up()
        assert await drawn(client, "slept") == list(after)

    asyncio.run(main())


def test_what_iterates_may_fail_and_may_not_call_the_engine(client, trained):
    async def main():
        loop = asyncio.get_running_loop()

        def failing():
            yield next(iter(trained.items()))
            raise RuntimeError("the trainer has gone")

        def calling():
            asyncio.run_coroutine_threadsafe(client.check_health(), loop).result(20)
            yield from trained.items()

        with pytest.raises(RuntimeError, match="the trainer has gone") as info:
            await client.update_weights(failing())
        assert info.value.__notes__
        with pytest.raises(InvalidRequestError, match="waits for the next weight"):
            await client.update_weights(calling())
        with pytest.raises(InvalidRequestError, match="pairs of a name and a tensor"):
            await client.update_weights(trained)
        assert await client.update_weights(trained.items()) > 0
        assert len(tokens(await collect(client))) == 20

    asyncio.run(main())
