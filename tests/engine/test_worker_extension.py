"""A trainer's own methods on the workers, and an executor of one's own, as vLLM's scripts have them."""

import sys

import pytest
import torch
from kit.engine.prompts import random_prompts
from kit.ready_process import ready_run

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, InvalidRequestError, UnsupportedError
from lullm.executor.uniproc import UniProcExecutor
from lullm.types.wire.importable import importable_name

OPTIONS = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 24, "enable_sleep_mode": True}
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPT = random_prompts(1, 40)[0]


class WeightSync:
    """What TRL's and OpenRLHF's classes do, with a list in the place of a process group."""

    communicator = None

    def init_communicator(self, sent, client_rank=0):
        if self.communicator is not None:
            raise RuntimeError("the communicator is there already")
        self.communicator, self.client_rank = sent, client_rank
        return self.rank

    def update_weight(self, name, dtype, shape):
        weight = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
        weight.copy_(self.communicator.pop(0))
        self.model_runner.model.load_weights(weights=[(name, weight)])

    def close_communicator(self):
        self.communicator = None


def token_ids(llm):
    return llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids


def push(llm, tensors):
    """As a trainer's client calls, tensor by tensor."""
    sent = []
    assert llm.collective_rpc("init_communicator", args=(sent,), kwargs={"client_rank": 1}) == [0]
    for name, tensor in tensors.items():
        sent.append(tensor)
        llm.collective_rpc("update_weight", args=(name, "float32", tuple(tensor.shape)))
    llm.reset_prefix_cache()
    llm.collective_rpc("close_communicator")


@pytest.mark.parametrize("extension", [WeightSync, importable_name(WeightSync)])
def test_a_trainer_pushes_by_its_own_methods(qwen3_folder, extension):
    norm = {"model.norm.weight": torch.linspace(0.5, 2.0, 64)}
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        before = token_ids(llm)
        llm.update_weights(norm.items())
        expected = token_ids(llm)
    assert before != expected
    with LLM(str(qwen3_folder), worker_extension_cls=extension, **OPTIONS) as llm:
        assert token_ids(llm) == before
        push(llm, norm)
        assert token_ids(llm) == expected
        assert llm.collective_rpc("weights_version") == [1], "the engine saw the change"
        llm.sleep(level=2)
        llm.wake_up()
        assert token_ids(llm) == before, "a sleep without weights reads the checkpoint"
        push(llm, norm)
        assert token_ids(llm) == expected


def test_what_is_no_method_of_it(qwen3_folder):
    with LLM(str(qwen3_folder), worker_extension_cls=WeightSync, **OPTIONS) as llm:
        for name in ("shutdown", "communicator", "_undo", "device", "no_such_method", 5, ["shutdown"]):
            with pytest.raises(InvalidRequestError, match="cannot be called by name; .*init_communicator"):
                llm.collective_rpc(name)
        with pytest.raises(UnsupportedError, match="timeout"):
            llm.collective_rpc("close_communicator", timeout=1.0)
        llm.collective_rpc("init_communicator", args=([],))
        with pytest.raises(RuntimeError, match="is there already"):
            llm.collective_rpc("init_communicator", args=([],))
        with pytest.raises(TypeError, match="missing"):
            llm.collective_rpc("update_weight")
        assert len(token_ids(llm)) == 12, "an error of a method ends nothing"
        with LLM(str(qwen3_folder), **OPTIONS) as other, pytest.raises(InvalidRequestError, match="cannot be called"):
            other.collective_rpc("init_communicator", args=([],))


def test_a_clash_is_an_error_of_the_options(qwen3_folder):
    with pytest.raises(ConfigError, match="a worker has loaded already"):
        LLM(str(qwen3_folder), worker_extension_cls=type("Mine", (), {"loaded": None}), **OPTIONS)


class CountingExecutor(UniProcExecutor):
    """One that counts steps, as an executor of one's own may add to lullm's."""

    num_steps = 0

    def launch_model(self, plan):
        self.num_steps += 1
        return super().launch_model(plan)


def test_an_executor_of_ones_own(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        expected = token_ids(llm)
    with LLM(str(qwen3_folder), distributed_executor_backend=CountingExecutor, **OPTIONS) as llm:
        assert isinstance(llm.llm_engine.model_executor, CountingExecutor)
        assert token_ids(llm) == expected and llm.llm_engine.model_executor.num_steps >= 12
    by_name = "lullm.executor.uniproc:UniProcExecutor"
    with LLM(str(qwen3_folder), distributed_executor_backend=by_name, **OPTIONS) as llm:
        assert token_ids(llm) == expected


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (WeightSync, "has no .*check_health, collective_rpc, .*derive it from lullm.executor.executor.Executor"),
        ("json:dumps", "is no class"),
        ("json:nothing", "cannot be imported"),
        (3, "must be a string or a class, not 3"),
    ],
)
def test_no_executor(qwen3_folder, backend, words):
    with pytest.raises(ConfigError, match=words):
        LLM(str(qwen3_folder), distributed_executor_backend=backend, **OPTIONS)


def test_a_script_of_its_own(qwen3_folder, tmp_path):
    """The class stands in the script, as in vLLM's examples: without `__main__`'s name it is still found in process."""
    script = tmp_path / "train.py"
    script.write_text(
        "from lullm import LLM\n"
        "class Mine:\n"
        "    def double(self, x):\n"
        "        return type(self).__name__, 2 * x\n"
        f"with LLM({str(qwen3_folder)!r}, worker_extension_cls=Mine, max_model_len=64) as llm:\n"
        "    print(llm.collective_rpc('double', args=(21,)))\n"
    )
    done = ready_run([sys.executable, str(script)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[('WorkerWithMine', 42)]"
