"""Sleep on a GPU, measured by the driver. Run by `make gpu-check`."""

import pytest
import torch
from kit.engine.parts import model_of

from lullm import LLM, SamplingParams
from lullm.units import MIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

GPU = {
    "device": "cuda",
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 512 * MIB,
    "swap_space": 0.01,
    "enable_sleep_mode": True,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
PROMPTS = [[5 + i, 6, 7, 8 * i + 3] for i in range(6)]


def used_bytes() -> int:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def tokens(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("enforce_eager", [False, True])
def test_memory_goes_and_comes_back(qwen3_folder, level, enforce_eager):
    with LLM(str(qwen3_folder), **{**GPU, "enforce_eager": enforce_eager}) as llm:
        expected, awake = tokens(llm), used_bytes()
        addresses = [p.data_ptr() for p in model_of(llm).parameters()]
        llm.sleep(level=level)
        assert awake - used_bytes() > 500 * MIB
        llm.wake_up()
        assert abs(used_bytes() - awake) < 64 * MIB
        model = model_of(llm)
        assert [p.data_ptr() for p in model.parameters()] == addresses
        assert tokens(llm) == expected, "graphs are still valid"


def test_unchanged_weights_are_not_copied_again(qwen3_folder):
    with LLM(str(qwen3_folder), **GPU) as llm:
        expected = tokens(llm)
        saved = []
        for cycle in range(4):
            if cycle == 2:
                norm = model_of(llm).model.norm.weight
                llm.update_weights([("model.norm.weight", norm.clone())])
            saved.append(llm.sleep().backed_up_bytes)
            llm.wake_up()
            assert tokens(llm) == expected
    assert saved[0] == saved[2] > 0 and saved[1] == saved[3] == 0


def test_running_requests_go_on(qwen3_folder):
    with LLM(str(qwen3_folder), **GPU) as llm:
        expected = tokens(llm)
        engine = llm.llm_engine
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(str(number), prompt, GREEDY)
        done = {}
        steps = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    done[int(output.request_id)] = output.outputs[0].token_ids
            steps += 1
            if steps in (5, 15):
                engine.sleep(level=1)
                engine.wake_up()
    assert [done[number] for number in range(len(PROMPTS))] == expected


def test_twenty_cycles_leak_nothing(qwen3_folder):
    with LLM(str(qwen3_folder), **GPU) as llm:
        expected = tokens(llm)
        asleep, awake = [], []
        for cycle in range(20):
            llm.sleep(level=1 + cycle % 2)
            asleep.append(used_bytes())
            llm.wake_up()
            awake.append(used_bytes())
        assert tokens(llm) == expected
    assert max(asleep[2:]) - min(asleep[2:]) < 8 * MIB
    assert max(awake[2:]) - min(awake[2:]) < 8 * MIB


def test_two_engines_in_one_process(qwen3_folder, llama_folder):
    with LLM(str(qwen3_folder), **GPU) as first, LLM(str(llama_folder), **GPU) as second:
        expected = tokens(first), tokens(second)
        for _ in range(2):
            first.sleep()
            assert tokens(second) == expected[1]
            first.wake_up()
            second.sleep(level=2)
            assert tokens(first) == expected[0]
            second.wake_up()
        assert (tokens(first), tokens(second)) == expected
