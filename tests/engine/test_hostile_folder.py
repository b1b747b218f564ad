"""Model folders that ended in a hang, in gigabytes or in another error: each is a ModelLoadError now, within seconds.

A fresh process opens them one after the other, since a hang or a lack of memory cannot be tested in this one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import lullm
from lullm.weights.folder import DEMO_FOLDER
from lullm.weights.reading.files import INDEX_FILE

SIZES = {
    "vocab_size": (10**30, 1e30, 2**24, 2049, True, "2048"),
    "hidden_size": (10**18, 2**18),
    "intermediate_size": (10**18, 2**20, 770),
    "num_hidden_layers": (10**5, 1024, 7, 10**400),
    "num_attention_heads": (10**9, 6),
    "num_key_value_heads": (4,),
    "head_dim": (10**9, 4096),
    "max_position_embeddings": (10**9, 10**400),
    "rope_theta": (10**400, 1.0, 1, 0.5, "1e4", float("nan"), float("inf")),
    "rms_norm_eps": (10**400, 1e300, 0),
    "tie_word_embeddings": ("no", 0, "false"),
    "attention_bias": ("no",),
    "eos_token_id": ("2", -1, [2, -7], 2**70, True),
    "bos_token_id": ("0", -1, 2**70),
}
ROPES = {
    "factor": {"rope_type": "linear", "factor": 1e-300},
    "beta_fast": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1e300},
    "beta_slow": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.0, "beta_slow": 32.0},
    "low_freq_factor": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": float("nan")},
    "attention_factor": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1e38},
    "mscale_all_dim": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1e-200},
    "truncate": {"rope_type": "yarn", "factor": 4.0, "truncate": "no"},
    "rope_theta": {"rope_type": "default", "rope_theta": 10**400},
}
CONFIGS = {f"{key}={str(value)[:12]}": (key, {key: value}) for key, values in SIZES.items() for value in values}
CONFIGS |= {f"rope {key}": (key, {"rope_scaling": parameters}) for key, parameters in ROPES.items()}
CONFIGS |= {"rope_scaling": ("rope_scaling", {"rope_scaling": "none"})}

JSON_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
SPECIAL_FILES = [
    ("fifo", name) for name in (*JSON_FILES, "tokenizer.json", "model.safetensors", "chat_template.jinja", INDEX_FILE)
]
SPECIAL_FILES += [("zero", name) for name in (*JSON_FILES, INDEX_FILE)]
BACKTRACKS = {"type": "Split", "pattern": {"Regex": "(?:a|aa)+$c"}, "behavior": "Isolated", "invert": False}
TOKENIZERS = {
    "regex": {"pre_tokenizer": BACKTRACKS},
    "charsmap": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
}
CODE = """
import json, resource, sys, time
from lullm import LLM
megabytes = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
for name, folder in json.load(sys.stdin):
    started, before = time.monotonic(), megabytes()
    try:
        LLM(folder, kv_cache_memory_bytes=1 << 24)
        fault = ["loaded", ""]
    except BaseException as error:
        fault = [type(error).__name__, str(error)]
    print(json.dumps([name, *fault, time.monotonic() - started, megabytes() - before]), flush=True)
"""


def copy_of_demo(folder: Path, leave_out: str = "") -> Path:
    """The demo model as links, so that tests can put something else in a file's place."""
    folder.mkdir()
    for path in DEMO_FOLDER.iterdir():
        if path.name != leave_out and path.suffix != ".md":
            (folder / path.name).symlink_to(path)
    return folder


def with_json(folder: Path, name: str, changes: dict) -> Path:
    copy_of_demo(folder, leave_out=name)
    (folder / name).write_text(json.dumps(json.loads((DEMO_FOLDER / name).read_text()) | changes))
    return folder


def folders(parent: Path) -> dict[str, tuple[str, Path]]:
    """(what the error must name, the folder), by case."""
    cases = {}
    for number, (case, (key, changes)) in enumerate(CONFIGS.items()):
        cases[case] = key, with_json(parent / str(number), "config.json", changes)
    for case, changes in TOKENIZERS.items():
        cases[case] = "tokenizer.json", with_json(parent / case, "tokenizer.json", changes)
    for kind, name in SPECIAL_FILES:
        folder = copy_of_demo(parent / f"{kind} {name}", leave_out=name)
        if kind == "fifo":
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to("/dev/zero")
        cases[f"{kind} {name}"] = name, folder
    headless = copy_of_demo(parent / "headless", leave_out="model.safetensors")
    save_file({"model.layers.0.mlp.up_proj.weight": torch.zeros(768)}, headless / "model.safetensors")
    cases["one layer"] = "num_hidden_layers", headless
    return cases


EXPECTED = [*CONFIGS, *TOKENIZERS, "one layer", *(f"{kind} {name}" for kind, name in SPECIAL_FILES)]


@pytest.fixture(scope="module")
def faults(tmp_path_factory) -> dict[str, tuple[str, str, str, float, float]]:
    """(name in the error, class of the error, its text, seconds, megabytes) by case, as far as the process came."""
    cases = folders(tmp_path_factory.mktemp("hostile"))
    environment = os.environ | {"PYTHONPATH": str(Path(lullm.__file__).parents[1]), "RUST_BACKTRACE": "0"}
    told = json.dumps([(case, str(folder)) for case, (_, folder) in cases.items()])
    with subprocess.Popen(
        [sys.executable, "-c", CODE],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(told, timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
    found = (json.loads(line) for line in output.splitlines())
    return {case: (cases[case][0], *fault) for case, *fault in found}


@pytest.mark.parametrize("case", EXPECTED)
def test_a_hostile_folder_is_refused_by_name(faults, case):
    assert case in faults, "the process hung or died before it came here"
    key, error, message, seconds, megabytes = faults[case]
    assert error == "ModelLoadError" and key in message, (error, message)
    assert len(message) < 3000 and seconds < 20 and megabytes < 400
