"""What every process of a trainer does in the tests on a GPU that is made up; all of them call the same.

python tests/kit/worker/launched_gpus.py FOLDER OUT STORE [TENSOR PIPELINE [FATE]]

STORE: a file for the trainer's process group; '-': torchrun's variables. TENSOR, PIPELINE: workers of a model. FATE: of
the last process within a step, 'dies' or 'hangs'. The variable A_HOST: where a process believes that it is.
"""

import json
import os
import sys
from pathlib import Path

import torch

from lullm import LLM, SamplingParams
from lullm.errors import WorkerLostError

OPTIONS = {
    "dtype": "float32",
    "max_model_len": 64,
    "max_num_seqs": 2,
    "num_gpu_blocks_override": 12,
    "swap_space": 0,
    "enable_sleep_mode": True,
}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
    SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True),  # with the engine's seeds
]
PROMPTS = [[5, 6, 7], [9, 10, 11, 12]]
PIECE = "model.layers.0.mlp.down_proj.weight"


def answers(llm: LLM, folder: Path, rank: int = 0, size: int = 1) -> list:
    """Tokens that are to be the same in every process, and with one worker on a CPU."""
    found = [tokens(llm)]
    for level in (1, 2):
        llm.sleep(level)
        llm.wake_up()
        found.append(tokens(llm))
    assert llm.update_weights(pushed(llm, folder, rank, size)) == 2
    found.append(tokens(llm))
    llm.sleep(1)
    llm.wake_up()
    return [*found, tokens(llm)]


def tokens(llm: LLM) -> list:
    outputs = [llm.generate(PROMPTS, params, use_tqdm=False) for params in PARAMS]
    return [[list(output.outputs[0].token_ids) for output in each] for each in outputs]


def pushed(llm: LLM, folder: Path, rank: int, size: int):
    """A whole tensor in the CPU's memory, and this process's piece of one where the trainer has it: on its GPU."""
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    yield "model.norm.weight", torch.linspace(0.5, 1.5, len(weights["model.norm.weight"]))
    device = llm.llm_engine.model_executor.driver_worker.device
    yield PIECE, (weights[PIECE] * 1.25).chunk(size, 1)[rank].contiguous().to(device)


def error_of_step(llm: LLM, rank: int, fate: str) -> str:
    """What this process says when that has happened to another."""
    from kit.worker.fake_gpus import doom

    tokens(llm)
    llm.collective_rpc(doom, args=(rank, fate))
    try:
        tokens(llm)
    except WorkerLostError as error:
        return str(error)
    raise AssertionError("there are tokens")


def main(folder: Path, out: Path, store: str, tensor: str = "2", pipeline: str = "1", fate: str = "") -> None:
    from kit.worker.fake_gpus import gpu_facts, meet_fake_gpu

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meet_fake_gpu(rank)  # the processes of a host see all of its GPUs
    if "A_HOST" in os.environ:
        from lullm.executor.external import launch

        launch._host = lambda: os.environ["A_HOST"]
    if store != "-":
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        torch.cuda.set_device(rank)
    options = OPTIONS | {"distributed_executor_backend": "external_launcher"}
    options |= {"tensor_parallel_size": int(tensor), "pipeline_parallel_size": int(pipeline)}
    options |= {"step_timeout": 10.0} if fate == "hangs" else {}
    with LLM(str(folder), device="cuda", **options) as llm:
        if fate:
            (out / f"{rank}.json").write_text(json.dumps(error_of_step(llm, size - 1, fate)))
            os._exit(0)  # threads still wait for the lost one, as they do in NCCL
        found = answers(llm, folder, rank, size)
        facts = llm.collective_rpc(gpu_facts)
    (out / f"{rank}.json").write_text(json.dumps([found, facts]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
