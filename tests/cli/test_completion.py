"""`lullm completion`: the scripts work in the shells that are here."""

import shutil
import subprocess

import pytest

from lullm.cli.main import main


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lullm", "ser"], ["serve"]),
        (["lullm", "serve", "--max-model"], ["--max-model-len", "--max-model-wait"]),
        (["lullm", "bench", "lat"], ["latency"]),
        (["lullm", "bench", "latency", "--num-iters-w"], ["--num-iters-warm", "--num-iters-warmup"]),
        (["lullm", "fly", "-"], []),
    ],
)
def test_bash(words, expected, capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = f'COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _lullm; echo "${{COMPREPLY[*]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected and done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_others_are_valid(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "serve" in script and "max-model-len" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n", "-c", script], check=True)
