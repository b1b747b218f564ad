"""Every family shared by workers, in threads and without an engine: the logits of transformers."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from kit.model.families import CASES, variants
from kit.model.golden import PagedRun, assert_close, golden_logits, load_model, prompt, save_model
from kit.worker.threads import thread_group

from lullm.config.model import ModelConfig
from lullm.config.parallel.share import share_of
from lullm.errors import ConfigError, WorkerLostError
from lullm.ops.selection import REFERENCE_OPS, TORCH_CPU_OPS, with_collective
from lullm.types.parallel.placement import Axis

TOKENS = prompt(1, 40)
INDIVISIBLE = {
    "Bamba biases, tied, one group": "groups of a state space",
    "Mamba2 one group, biases, tied, bounded steps": "groups of a state space",
    "NemotronH biases, one group": "groups of a state space",
    "Qwen3Next a head of each, biases, dense layers, tied": "linear_num_value_heads",
    "Zamba2 one block, no rope, no adapters in attention, biases, one group": "groups of a state space",
}
FOUR = ("DeepseekV3", "GPT2", "Gemma3", "Gemma4", "GptOss", "Lfm2", "Llama", "Mixtral", "Olmo2", "Phi3", "Qwen3Next")
"""Of each family the variants that four workers share: two or one key heads, and a vocabulary of 131."""


def shared_logits(folder, size, deals_experts=False, ops=TORCH_CPU_OPS):
    """By rank, of a prompt in two chunks."""

    def compute(member):
        try:
            return logits_of(member)
        except BaseException as error:
            member.close()  # the others need not wait
            return error

    def logits_of(member):
        model = load_model(folder, axis=Axis(member.rank, size), deals_experts=deals_experts)
        run = PagedRun(model, with_collective(ops, member), 1)
        return torch.cat([run.step([(0, TOKENS[:25])]), run.step([(0, TOKENS[25:])])])

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(compute, thread_group(size)))
    if errors := [error for error in found if isinstance(error, BaseException)]:
        raise next((error for error in errors if not isinstance(error, WorkerLostError)), errors[0])
    return found


@pytest.mark.parametrize(("family", "name", "options"), variants(None, 1))
def test_two_workers(tmp_path, family, name, options):
    theirs = save_model(tmp_path, family, options)
    if reason := INDIVISIBLE.get(f"{family} {name}"):
        with pytest.raises(ConfigError, match=f"tensor_parallel_size=2 .*{reason}.*pipeline_parallel_size"):
            share_of(ModelConfig.from_folder(tmp_path), Axis(0, 2))
        return
    first, second = shared_logits(tmp_path, 2)
    assert torch.equal(first, second), "what is sampled from is the same everywhere"
    assert_close(first, golden_logits(theirs, TOKENS))


EXPERTS = {
    "Afmoe": {},
    "DeepseekV2": {},
    "Gemma4": {"num_experts": 6},
    "Glm4Moe": {},
    "GptOss": {"num_local_experts": 6},
    "GraniteMoeHybrid": {},
    "HYV3": {},
    "KimiLinear": {},
    "Lfm2Moe": {"num_experts": 6},
    "Llama4": {"num_local_experts": 6},
    "Mellum": {"num_experts": 6},
    "Mixtral": {},
    "NemotronH": {},
    "Phimoe": {"num_local_experts": 6},
    "Qwen2Moe": {"num_experts": 6},
    "Qwen3_5Moe": {"num_experts": 6},
    "Qwen3Moe": {"num_experts": 6},
}
"""Families with an even number of experts, some by themselves in a checkpoint, some as one tensor."""


@pytest.mark.parametrize("family", EXPERTS)
def test_whole_experts(tmp_path, family):
    variants = CASES[family].variants
    plain = next((options for name, options in variants.items() if name.startswith("experts")), None)
    theirs = save_model(tmp_path, family, (plain or next(iter(variants.values()))) | EXPERTS[family])
    expected = golden_logits(theirs, TOKENS)
    for ops in (TORCH_CPU_OPS, REFERENCE_OPS):
        first, second = shared_logits(tmp_path, 2, deals_experts=True, ops=ops)
        assert torch.equal(first, second)
        assert_close(first, expected)


@pytest.mark.parametrize("family", FOUR)
def test_four_workers(tmp_path, family):
    """Key heads are fewer than workers, so that two or four hold the same; the last workers have no row of the head."""
    theirs = save_model(tmp_path, family, next(iter(CASES[family].variants.values())))
    found = shared_logits(tmp_path, 4)
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert_close(found[0], golden_logits(theirs, TOKENS))
