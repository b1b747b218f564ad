"""Memory is really released, and what `explain_sleep` says comes true: fresh processes whose resident size is read."""

import json
import os
import signal
import subprocess
import sys
import time

SETUP = """
import json, sys
from pathlib import Path
import torch
from kit.engine.parts import arenas_of
from lullm import LLM, SamplingParams
from lullm.machine.memory import resident_bytes

# Most of the weights are the vocabulary's, through which only few rows go.
config = dict(architectures=["Qwen3ForCausalLM"], vocab_size=65536, hidden_size=1024, intermediate_size=256,
    num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=8, head_dim=128, max_position_embeddings=2048,
    tie_word_embeddings=True, torch_dtype="bfloat16", eos_token_id=0)
folder, sleep_dir = map(Path, sys.argv[1:3])
(folder / "config.json").write_text(json.dumps(config))
llm = LLM(str(folder), tokenizer="demo", load_format="dummy", enable_sleep_mode=True, max_model_len=1024,
    sleep_dir=str(sleep_dir), swap_space=0)
params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
prompts = [[3 + i] * 200 for i in range(16)]
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

CYCLES = """
engine = llm.llm_engine
weights = arenas_of(llm)["weights"].used_bytes
block = 16 * 2 * 6 * 8 * 128 * 2  # tokens, keys and values, layers, heads, bfloat16
llm.generate(prompts, params, use_tqdm=False)
for number, prompt in enumerate(prompts):
    engine.add_request(str(number), prompt, params.replace(max_tokens=100))
engine.step()
engine.step()
calls = [dict(level=2), dict(level=1, backup="disk"), dict(level=1, backup="disk", keep_prefix_cache=True),
         dict(level=1, backup="ram")]
rows = []
for cycle in range(17):
    call = calls[cycle % 4 if cycle < 8 else 1 + cycle % 3]
    if cycle == 5:
        changed = torch.zeros(1024, 1024, dtype=torch.bfloat16)
        llm.update_weights((f"model.layers.{i}.self_attn.o_proj.weight", changed) for i in range(6))
        engine.step()
    held = weights + engine.stats().num_used_blocks * block
    forecast = llm.explain_sleep(**call)
    awake = resident_bytes()
    report = llm.sleep(**call)
    asleep = resident_bytes()
    wake = llm.wake_up()
    rows.append(dict(
        held=held, awake=awake, asleep=asleep, restored=wake.restored_bytes,
        in_ram=report.backed_up_bytes if call.get("backup") == "ram" else 0,
        frees=[forecast.frees_bytes, report.freed_bytes],
        backs_up=[forecast.backs_up_bytes, report.backed_up_bytes],
        seconds=[forecast.sleep_seconds, report.seconds, forecast.wake_seconds, wake.seconds]))
    if cycle < 8:  # after that, what grows is the sleep's
        engine.step()
print(json.dumps(dict(rows=rows, left=[p.name for p in sleep_dir.iterdir()])))
"""


def run(code, *folders):
    command = [sys.executable, "-c", SETUP + code, *map(str, folders)]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def folders(tmp_path):
    for name in ("model", "sleep"):
        (tmp_path / name).mkdir()
    return tmp_path / "model", tmp_path / "sleep"


def test_many_cycles(tmp_path):
    found = run(CYCLES, *folders(tmp_path))
    rows = found["rows"]
    for cycle, row in enumerate(rows):
        predicted, freed = row["frees"]
        assert abs(predicted - freed) <= 0.05 * freed, f"cycle {cycle}: {row}"
        assert row["backs_up"][0] == row["backs_up"][1]
        assert all(seconds > 0 for seconds in row["seconds"])
        assert row["awake"] - row["asleep"] >= 0.95 * row["held"] - row["in_ram"], f"cycle {cycle}: {row}"
    assert rows[3]["backs_up"][1] > 16 * 200 * 2 * 6 * 8 * 128 * 2, "of the KV of all requests"
    assert rows[7]["backs_up"][1] >= rows[3]["backs_up"][1] + 6 * 1024 * 1024 * 2, "and of changed weights"
    for early, late in zip(rows[8:11], rows[14:17], strict=True):
        assert late["asleep"] - early["asleep"] < 0.02 * early["held"], "cycles leave nothing behind"
        assert late["backs_up"][1] == early["backs_up"][1] > 0
    assert found["left"] == []


FALL_ASLEEP = """
print("ready", flush=True)
engine = llm.llm_engine
long = params.replace(max_tokens=800)
for number, prompt in enumerate(prompts[:4]):
    engine.add_request(str(number), prompt, long)
while True:
    engine.step()
    llm.sleep(1, backup="disk")
    print("asleep", flush=True)
    llm.wake_up()
"""


def test_a_kill_in_the_middle_of_sleep_leaves_nothing_behind(tmp_path):
    model, sleep_dir = folders(tmp_path)
    arguments = [sys.executable, "-c", SETUP + FALL_ASLEEP, str(model), str(sleep_dir)]
    process = subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        assert process.stdout.readline() == "asleep\n"
        deadline = time.monotonic() + 60
        while not writes_backup(process.pid, sleep_dir):
            assert time.monotonic() < deadline
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert list(sleep_dir.iterdir()) == []
    found = run("print(json.dumps(llm.sleep(1).freed_bytes)); llm.wake_up()", model, sleep_dir)
    assert found > 0, "a new process starts clean"


def writes_backup(pid, sleep_dir):
    """Whether the process has a file open in `sleep_dir`."""
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(str(sleep_dir)):
                return True
        except OSError:  # closed by now
            continue
    return False
