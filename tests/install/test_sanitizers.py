"""`make check-native` fails at the first report of a sanitizer, also where the tests outlive the fault."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULT = 'extern "C" int fault(int x) { return x + 2147483647; }'
TEST = """
import ctypes
def test_fault():
    ctypes.CDLL("./fault.so").fault(5)
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_fault_fails_the_check(tmp_path):
    recipe = (ROOT / "Makefile").read_text().split("\ncheck-native:")[1].split("\n\n")[0]
    command = recipe[recipe.index("LULLM_CPU_LIBRARY") :]
    for name, value in (("$(CURDIR)", str(tmp_path)), ("$(BIN)/python", sys.executable), ("$$", "$")):
        command = command.replace(name, value)
    command, num_lists = re.subn(r"\$\(wildcard .*\)", "-q -p no:cacheprovider test_fault.py", command)
    assert num_lists == 1
    (tmp_path / "fault.cpp").write_text(FAULT)
    (tmp_path / "test_fault.py").write_text(TEST)
    flags = ["-shared", "-fPIC", "-fsanitize=address,undefined"]
    subprocess.run(["c++", *flags, "fault.cpp", "-o", "fault.so"], cwd=tmp_path, check=True)
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode != 0 and "signed integer overflow" in done.stderr, done.stdout + done.stderr
