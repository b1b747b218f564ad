"""Each command that README and docs show: its flags, files and endpoints exist; and it works, unless its block says why
it cannot be tried here."""

import contextlib
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs.markdown import ROOT, URL, Command, command_blocks, commands, expected

from lullm.cli.main import build_parser, main
from lullm.cli.parser import sub_parsers

BLOCKS = {block.name: block for block in command_blocks()}
TRIED = [name for name, block in BLOCKS.items() if block.mark is None]
SLOW = [name for name, block in BLOCKS.items() if block.mark == "slow"]
ELSEWHERE = {"docker", "pip", "uv", "guidellm", "lm_eval", "ollama", "vllm", "cat", "echo"}
"""Programs of others."""


def all_commands():
    return [
        pytest.param(each, id=f"{name}-{n}") for name, block in BLOCKS.items() for n, each in enumerate(commands(block))
    ]


@pytest.mark.parametrize("command", all_commands())
def test_it_can_be_said(command: Command, capsys):
    program, *words = command.words
    if command.is_mistake or command.words == ("lullm",):
        return
    if program == "lullm":
        assert not words or words[0] in sub_parsers(build_parser()) or words[0].startswith("-")
        with contextlib.suppress(SystemExit) if "--version" in words or "--help" in words else contextlib.nullcontext():
            build_parser().parse_args(words)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert [word for word in words if "=" not in word and word not in targets] == []
    elif program in ("python", "python3"):
        check_python(words)
    elif program == "curl":
        assert any(URL.search(word) for word in words)
    else:
        assert program in ELSEWHERE


def check_python(words: list[str]) -> None:
    """The script or module is there, and knows the flags."""
    if words[:2] == ["-m", "pytest"]:
        assert all((ROOT / word).exists() for word in words[2:] if not word.startswith("-"))
        return
    if words[0] == "-m":
        place = words[1].replace(".", "/")
        names = [ROOT / base / f"{place}{end}" for base in ("", "src") for end in (".py", "/__main__.py")]
        [path] = filter(Path.exists, names)
    else:
        path = ROOT / words[0]
    source = path.read_text()
    assert [word for word in words if word.startswith("--") and f'"{word}"' not in source] == []


@pytest.mark.parametrize("name", TRIED)
def test_it_works(name, here, server, monkeypatch, capfd):
    try_block(name, server, monkeypatch, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_it_works_slowly(name, here, server, monkeypatch, capfd):
    try_block(name, server, monkeypatch, capfd)


def try_block(name: str, server: str, monkeypatch, capfd) -> None:
    for command in commands(BLOCKS[name]):
        text = Path(command.stdin).read_text() if command.stdin else "What is 17 + 25?\n"
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        program, *words = command.words
        words = [URL.sub(server, word) for word in words]
        capfd.readouterr()
        if program == "lullm":
            code = run_lullm(words, server)
            assert code == (2 if command.is_mistake else 0), words
        elif program == "curl" and shutil.which("curl"):
            subprocess.run(["curl", "-sS", "--fail-with-body", *words], check=True)
        out, err = capfd.readouterr()
        shown = (out + err).replace(server, "http://127.0.0.1:8000")
        assert expected(command.printed).search(shown), (command.words, shown)
        assert program != "curl" or out


def run_lullm(words: list[str], server: str) -> int:
    if words[:1] == ["serve"]:
        words = [*words, "--port", "0", "--log-level", "error"]
    if words[:1] in (["ps"], ["sleep"], ["wake"]):
        words = [*words, "--url", server]
    try:
        return main(words)
    except SystemExit as end:  # --help, --version, what argparse refuses
        return int(end.code or 0)
