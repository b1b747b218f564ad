"""Assembly: how many blocks and how long a sequence, and what the workers hear of it."""

import pytest
from kit.engine.parts import worker_of

from lullm import LLM
from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.engine.assembly import open_scheduler
from lullm.errors import CacheSizeError

MODEL = ModelConfig.from_dict(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 128,
    }
)


class Workers:
    """An executor whose workers have room for so many blocks."""

    def __init__(self, num_blocks, num_host_blocks=0):
        self.room = num_blocks, num_host_blocks
        self.initialized = []
        self.num_measured = 0

    def determine_num_available_blocks(self):
        return self.room

    def initialize_cache(self, num_blocks, num_host_blocks, max_model_len):
        self.initialized.append((num_blocks, num_host_blocks, max_model_len))

    def measure_copy_speed(self):
        self.num_measured += 1
        return 1e9


def assemble(workers, **options):
    said = EngineConfig(block_size=16, **options)
    return open_scheduler(said.resolve(MODEL), MODEL, workers, has_chosen_len=said.max_model_len is not None)


@pytest.mark.parametrize(("num_blocks", "length"), [(100, 128), (8, 128), (7, 112), (1, 16)])
def test_workers_hear_the_length_that_fits(num_blocks, length):
    workers = Workers(num_blocks)
    config, scheduler = assemble(workers)
    assert config.max_model_len == scheduler.limits.max_model_len == length
    assert workers.initialized == [(num_blocks, 0, length)]


def test_a_chosen_length_is_not_lowered():
    workers = Workers(4)
    with pytest.raises(CacheSizeError, match="room for 64 tokens, fewer than max_model_len=65"):
        assemble(workers, max_model_len=65)
    assert not workers.initialized
    assert assemble(workers, max_model_len=64)[0].max_model_len == 64


@pytest.mark.parametrize(
    ("mode", "num_host_blocks", "used", "num_measured"),
    [("auto", 2, "auto", 1), ("auto", 0, "recompute", 0), ("swap", 2, "swap", 0), ("recompute", 2, "recompute", 0)],
)
def test_copies_are_measured_only_for_a_choice(mode, num_host_blocks, used, num_measured):
    workers = Workers(8, num_host_blocks)
    _, scheduler = assemble(workers, preemption_mode=mode)
    assert scheduler.preemption.mode == used and workers.num_measured == num_measured


def test_a_worker_sizes_its_steps_for_the_length_that_fits(qwen3_folder):
    with LLM(str(qwen3_folder), num_gpu_blocks_override=3, block_size=16) as llm:
        assert llm.llm_engine.model_config.max_position_embeddings > 48
        assert llm.llm_engine.config.max_model_len == worker_of(llm).setup.config.max_model_len == 48
