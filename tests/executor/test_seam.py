"""What crosses the seam is plain data and tensors: an engine whose workers get and give copies of everything."""

import copy
import dataclasses
import enum

import msgspec
import pytest
import torch
from kit.engine.prompts import random_prompts
from kit.worker.fakes import ReplicaExecutor

from lullm import LLM, SamplingParams
from lullm.executor.uniproc import LocalWorkers
from lullm.executor.workers import Answer

OPTIONS = {"dtype": "float32", "max_model_len": 128, "enable_sleep_mode": True, "num_gpu_blocks_override": 24}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, n=2, logprobs=2),
    SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True, presence_penalty=0.5, prompt_logprobs=1),
]
PROMPTS = random_prompts(8, 60)
PLAIN = (str, bytes, int, float, bool, type(None), torch.dtype, enum.Enum)


def check_plain(value, path):
    """Nothing in there is a function, a generator, a file, or an object with a life of its own."""
    if isinstance(value, PLAIN + (torch.Tensor,)):
        return
    if isinstance(value, (list, tuple, frozenset, set)):
        for number, part in enumerate(value):
            check_plain(part, f"{path}[{number}]")
    elif isinstance(value, dict):
        for key, part in value.items():
            check_plain(part, f"{path}[{key!r}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            check_plain(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            check_plain(getattr(value, name), f"{path}.{name}")
    else:
        raise AssertionError(f"{path} is no plain data: {type(value)}")


def crossed(value, path):
    """What arrives on the other side."""
    check_plain(value, path)
    return copy.deepcopy(value)


@dataclasses.dataclass
class CopiedStep:
    step: object

    def result(self):
        return crossed(self.step.result(), "result")


class DistantWorkers(LocalWorkers):
    """Local ones, as if they were elsewhere. `verbs`: what they were asked for."""

    def __init__(self, workers):
        super().__init__(workers)
        self.verbs = set()

    def call(self, verb, *args):
        self.verbs.add(verb)
        answers = super().call(verb, *(crossed(arg, f"{verb}({number})") for number, arg in enumerate(args)))
        return [Answer(crossed(answer.value, f"the answer of {verb}"), answer.error) for answer in answers]

    def launch(self, plan):
        return [CopiedStep(step) for step in super().launch(crossed(plan, "plan"))]


class DistantExecutor(ReplicaExecutor):
    def __init__(self, *args):
        super().__init__(1, *args)
        self._workers = DistantWorkers(self.workers)


def answers(llm):
    """A generation with preemption, and a sleep and new weights in the middle of another."""
    engine = llm.llm_engine
    found = [llm.generate(PROMPTS, params, use_tqdm=False) for params in PARAMS]
    engine.add_request("x", PROMPTS[0], PARAMS[1])
    engine.step()
    llm.explain_sleep()
    llm.sleep(backup="ram")
    llm.wake_up()
    engine.step()
    norm = torch.linspace(0.5, 1.5, 64)
    llm.update_weights((name, tensor) for name, tensor in [("model.norm.weight", norm)])
    llm.sleep(level=2, tags=["kv_cache"])
    llm.wake_up()
    while engine.has_unfinished_requests():
        outputs = engine.step()
    llm.collective_rpc("reload_weights")
    return [[c.token_ids for c in output.outputs] for outputs in [*found, outputs] for output in outputs]


def test_copies_give_the_same_tokens(qwen3_folder, monkeypatch):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        expected = answers(llm)
    monkeypatch.setattr("lullm.engine.llm_engine.open_executor", DistantExecutor)
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        assert answers(llm) == expected
        verbs = llm.llm_engine.model_executor._workers.verbs
    assert {"initialize_cache", "prepare_sleep", "commit_sleep", "forecast_sleep", "wake_up", "write_weight"} <= verbs


LIVE = {"function": lambda: None, "generator": (x for x in "ab"), "builtin": open, "object": object()}


@pytest.mark.parametrize("value", LIVE.values(), ids=LIVE)
def test_the_check_finds_what_lives(value):
    with pytest.raises(AssertionError, match="no plain data"):
        check_plain({"a": [value]}, "it")
