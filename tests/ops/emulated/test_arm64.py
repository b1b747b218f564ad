"""The native ops of ARM64, compiled here and run by an emulator: right numbers, and nothing about speed.

    make arm64 check-arm64

`neon` computes every bit as AVX2 does (`digests.py`), and `neon_bf16` is compared with the golden ops by the tests of
these. Emulated, a test takes fifty times as long, so shapes are small and cases few.
"""

import json
import re
import subprocess
import sys

import pytest

from lullm.ops.cpu.library import load_library

from . import machine

pytestmark = [pytest.mark.slow, pytest.mark.skipif(machine.absence() is not None, reason=str(machine.absence()))]

OP_TESTS = {  # file of tests/ops -> which of its tests, for `-k`
    "test_native.py": "test_logits or norm or test_activate or test_other_gates or reads_rows",
    "test_batch_invariance.py": "linear or attention or sums",
    "test_quantized.py": "native_linear or native_quantizing or company",
    "test_int8_cache.py": "",
    "test_float8_cache.py": "",
    "test_mutual_attention.py": "(native or same_bits) and not piece and not long",
    "test_experts.py": "",
    "test_state.py": "golden or gated_norm or multiplies",
    "test_recording.py": "",
}


@pytest.fixture(scope="module", autouse=True)
def library():
    return machine.build_library()


def test_instruction_sets_share_no_function(library):
    """The linker keeps one of equal names, and a lesser processor would run into a better one's instructions."""
    found = set()
    for built in library.parent.glob("CMakeFiles/lullm_cpu_neon*.dir/**/*.o"):
        names = subprocess.run(["nm", "-C", built], capture_output=True, text=True, check=True).stdout
        found |= {(line.split(" W ")[1], built.parent) for line in names.splitlines() if " W lullm::" in line}
    shared = sorted({name for name, _ in found if "::neon" not in name})
    assert not shared


@pytest.mark.parametrize("cpu, isas", [("max", "neon neon_bf16"), ("cortex-a72", "neon")])
def test_the_processor_decides(cpu, isas):
    code = "from lullm.ops.cpu.library import load_library; print(*load_library().available_isas)"
    assert machine.run("-c", code, cpu=cpu).split() == isas.split()


def test_neon_has_the_bits_of_avx2():
    native = load_library()
    if native is None or "avx2" not in native.available_isas:
        pytest.skip("no AVX2 to compare with")
    script = machine.ROOT / "tests/ops/emulated/digests.py"
    here = subprocess.run([sys.executable, script, "avx2"], capture_output=True, text=True, check=True).stdout
    expected, found = json.loads(here), json.loads(machine.run(script, "neon"))
    assert len(expected) == 15 and found == expected
    # The products of pairs are those of another instruction; what has none keeps its bits.
    with_dots = json.loads(machine.run(script, "neon_bf16"))
    assert {name for name in expected if with_dots[name] != expected[name]} <= {
        f"{op} torch.bfloat16" for op in ("linear", "gated_linear", "attention")
    }


@pytest.mark.parametrize("file", OP_TESTS)
def test_ops(file, capsys):
    chosen = ["-k", OP_TESTS[file]] if OP_TESTS[file] else []
    out = machine.run("-m", "pytest", "-p", "no:cacheprovider", f"tests/ops/{file}", *chosen, timeout=3600)
    (passed,) = re.findall(r"(\d+) passed", out)
    with capsys.disabled():
        print(f"\nARM64, emulated: {file}: {out.splitlines()[-1]}")
    assert int(passed) >= 10


CHAT = """
from lullm import LLM, SamplingParams
asked = [[{"role": "user", "content": text}] for text in ("What is 17 + 25?", "Tell me a short story about a dog.")]
outputs = LLM("demo", dtype="float32").chat(asked, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
print([list(output.outputs[0].token_ids) for output in outputs])
"""


def test_the_demo_model_says_the_same():
    here = subprocess.run([sys.executable, "-c", CHAT], capture_output=True, text=True, check=True).stdout
    assert json.loads(machine.run("-c", CHAT)) == json.loads(here)
