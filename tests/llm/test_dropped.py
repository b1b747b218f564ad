"""An `LLM` that is dropped without `shutdown` frees its memory at once: nothing in it is in a circle of references."""

import json
import subprocess
import sys

CODE = """
import gc, json, os, weakref
from lullm import LLM, SamplingParams, StructuredOutputsParams

gc.disable()

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

def use(options):
    llm = LLM(threads=1, **options)
    params = SamplingParams(max_tokens=8, n=2, seed=1, structured_outputs=StructuredOutputsParams(regex="[0-9]{8,99}"))
    llm.generate(["1", "2"], params, use_tqdm=False)
    llm.chat([{"role": "user", "content": "1"}], use_tqdm=False, chat_template="{{ messages[0].content }}")
    llm.get_metrics()
    if "enable_sleep_mode" in options:
        llm.sleep()
        llm.wake_up()
    engine = llm.llm_engine
    kept = [each for each in (llm, engine, *vars(engine).values()) if hasattr(each, "__weakref__")]
    names = "Worker", "CausalLM", "HostArena", "Tokenizer"
    kept += [each for each in gc.get_objects() if type(each).__name__ in names]
    return [(type(each).__name__, weakref.ref(each)) for each in kept], resident_bytes()

for options in (
    {},
    {"enable_lora": True, "enable_sleep_mode": True, "swap_space": 0.1, "num_gpu_blocks_override": 64},
    {"speculative_config": {"model": "demo", "num_speculative_tokens": 2}, "enforce_eager": True},
):
    names, most = use(options)
    alive = [name for name, ref in names if ref() is not None]
    print(json.dumps([len(names), alive, most - resident_bytes()]))
"""


def test_without_a_garbage_collection():
    # The first engine of a process imports torch, whose own circles hold the frames around the import.
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    for line in ran.stdout.splitlines():
        num, alive, fell = json.loads(line)
        assert num > 12 and alive == []
        assert fell > 10e6, "the weights of the demo model, and some of its KV cache"
    assert len(ran.stdout.splitlines()) == 3
