"""What every process of an external launcher does in the tests: one script, in which all call the same.

python tests/kit/worker/launched.py FOLDER OUT STORE [TENSOR PIPELINE]

STORE: a file for a trainer's process group; '-': torchrun's variables. TENSOR, PIPELINE: workers of a model.
"""

import json
import os
import sys
from pathlib import Path

import torch
from kit.engine.prompts import random_prompts

from lullm import LLM, SamplingParams
from lullm.errors import ModelLoadError

OPTIONS = {
    "dtype": "float32",
    "max_model_len": 96,
    "enable_sleep_mode": True,
    "num_gpu_blocks_override": 14,  # some are preempted
    "swap_space": 0.001,
}
PROMPTS = random_prompts(5, 24)
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, n=2, logprobs=1),
    SamplingParams(temperature=1.0, top_p=0.9, max_tokens=16, ignore_eos=True),  # with the engine's seeds
]
PIECES = {"model.layers.0.self_attn.q_proj.weight": 0, "model.layers.1.mlp.down_proj.weight": 1}
"""Along which dimension a trainer has cut these."""


def answers(llm: LLM, folder: Path, rank: int = 0, size: int = 1) -> list:
    """Tokens and counts that are to be the same in every process, and with one worker."""
    found = [tokens(llm, params) for params in PARAMS]
    for sleep in ({"level": 1, "backup": "ram"}, {"level": 1}, {"level": 2}, {"level": 2, "tags": ["kv_cache"]}):
        llm.sleep(**sleep)
        llm.wake_up()
        found.append(tokens(llm, PARAMS[0]))
    found.append(llm.update_weights(pushed(folder, rank, size)))
    found.append(tokens(llm, PARAMS[0]))
    llm.sleep(level=1)
    llm.wake_up()
    found.append(tokens(llm, PARAMS[0]))
    llm.collective_rpc("reload_weights")
    found.append(tokens(llm, PARAMS[1]))
    for layers in ({0, 1, 2}, {0}):  # the second time one stage alone has a new layer
        load_own_layers(llm, layers)
        found.append(tokens(llm, PARAMS[1]))
    return found


def load_own_layers(llm: LLM, layers: set[int]) -> None:
    """New weights of these layers, as far as this process has them, into its worker's model. All KV is stale then."""
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    names = [f"model.layers.{layer}.input_layernorm.weight" for layer in layers & set(model.config.layers)]
    assert model.load_weights([(name, torch.linspace(0.5, 1 + len(layers), 64)) for name in names]) == set(names)


def tokens(llm: LLM, params: SamplingParams) -> list:
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    return [[list(each.token_ids) for each in output.outputs] for output in outputs]


def pushed(folder: Path, rank: int, size: int):
    """New weights: of those that a trainer has cut, this process's piece."""
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    yield "model.norm.weight", torch.linspace(0.5, 1.5, len(weights["model.norm.weight"]))
    for name, dim in PIECES.items():
        yield name, (weights[name] * 1.25).chunk(size, dim)[rank]


def main(folder: Path, out: Path, store: str, tensor: str = "2", pipeline: str = "1") -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if store != "-":
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    options = OPTIONS | {"distributed_executor_backend": "external_launcher"}
    options |= {"tensor_parallel_size": int(tensor), "pipeline_parallel_size": int(pipeline)}
    if size == int(tensor) * int(pipeline):
        with LLM(str(folder), **options) as llm:
            found = answers(llm, folder, rank, size)
            executor = llm.llm_engine.model_executor
            seat = executor.driver_worker.setup.seat
            kinds = [type(seat.tensor if seat.tensor.size > 1 else seat.pipeline).__name__, executor.num_workers]
            pids = llm.collective_rpc(lambda worker: os.getpid())
            assert len(set(pids)) == size and pids[rank] == os.getpid()
            errors = [mistake(llm, lambda: [(f"model.layers.{rank}.input_layernorm.weight", torch.ones(64))])]
            errors += [mistake(llm, lambda: [("model.norm.weight", torch.ones(7))])]
    else:
        with LLM(str(folder), **options) as llm:
            found, kinds, errors = [tokens(llm, PARAMS[0])], [], []
    (out / f"{rank}.json").write_text(json.dumps([found, kinds, errors]))


def mistake(llm: LLM, weights) -> str:
    try:
        llm.update_weights(weights())
    except ModelLoadError as error:
        return str(error)
    raise AssertionError("it was taken")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
