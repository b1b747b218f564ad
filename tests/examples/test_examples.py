"""Every script of `examples/`: a process of its own, the demo model, its output and exit status 0."""

import os
import re
import sys
from pathlib import Path

import pytest
from kit.ready_process import CHILDREN_TOO, ready_run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# script: what its output holds
WORDS = {
    "offline_batch": r"(?s)'17 \+ 25 =' -> ' ?42.*\n0: .*\n1: ",
    "chat": r"(?s)17 \+ 25 = 42.*\([1-9]\d* of \d+ prompt tokens were cached\)",
    "openai_client": r"(?s)17 \+ 25 = 42\. \d+ tokens\n\w+",
    "several_models": r"(?s)(MiB were released in .*){4}at most \d+ MiB were resident",
    "sleeping_notebook": r"(?s)^(?P<text>[^\n]+)\n.*the engine is weights_offloaded\n(?P=text)\n",
    "hibernation": r"(?s)4 requests are on disk: .*\n4 came back with [1-9]\d* KV blocks.*(100 tokens, .*){4}",
    "structured_extraction": r"-> (\{'name': .*'kind': '(person|animal|thing)', 'age': \d+\}|too long: )",
    "retrieval": r"(?s)^(-?\d\.\d{3}  [^\n]+\n){3}.*The capital of France is",
    "reinforcement": r"(?s)round 3: reward .* MiB released.*engine -\d+\.\d+, trainer -\d+\.\d+",
    "grpo_trl": r"(?s)(MiB released; engine and trainer are \de-0\d apart.*){4}round 3: reward 0\.\d+",
}


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == WORDS.keys()
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"[{name}.py]({name}.py)" in listed for name in WORDS)


@pytest.mark.parametrize("name", WORDS)
def test_example(name):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | CHILDREN_TOO
    done = ready_run([sys.executable, EXAMPLES / f"{name}.py"], env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(WORDS[name], done.stdout), done.stdout
