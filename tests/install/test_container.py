"""Dockerfile and compose.yaml: linted, their commands parsed, their paths there. No image is built here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lullm.cli.main import build_parser
from lullm.server.options import ServerOptions

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, the rest of its line) of each."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def test_the_linter_is_content():
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, "--no-color", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_copied_is_there_and_sent_to_the_builder():
    sources = [source for name, rest in dockerfile() if name == "COPY" and "--from" not in rest
               for source in rest.split()[:-1]]  # fmt: skip
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert len(sources) == 5
    for source in sources:
        assert (ROOT / source).exists() and f"!{source}" in sent
    assert "**/*.so" in sent, "a library of this machine would be taken for the container's"


def test_its_torch_is_the_one_that_make_installs():
    [pinned] = re.findall(r"^TORCH \?= (\S+)$", (ROOT / "Makefile").read_text(), re.M)
    [run] = [rest for name, rest in dockerfile() if name == "RUN" and "torch" in rest]
    assert f" {pinned} --index-url " in run and run.endswith("/cpu")


def served(argv: list[str]) -> dict:
    """What the command says; a server's port may be left out."""
    args = vars(build_parser().parse_args(argv))
    assert args["command"] == "serve" and args["host"] == "0.0.0.0"
    return {"port": ServerOptions().port} | args


def test_the_command_of_the_image():
    values = dict(dockerfile())
    assert json.loads(values["ENTRYPOINT"]) == ["lullm"] and values["USER"] != "root"
    assert str(served(json.loads(values["CMD"]))["port"]) == values["EXPOSE"]
    health = json.loads(values["HEALTHCHECK"].partition("CMD ")[2])
    assert build_parser().parse_args(health[1:]).command == "ps"


def test_compose():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    [service] = services.values()
    args = served([re.sub(r"\$\{\w+:-(\w+)\}", r"\1", word) for word in service["command"]])
    assert args["positional_model"] == "demo"
    assert service["stop_grace_period"] == f"{args['drain_timeout_s'] + 10:g}s"
    assert service["ports"] == [f"127.0.0.1:{args['port']}:{args['port']}"], "nobody else's, unless somebody says so"
    [volume] = service["volumes"]
    assert volume.partition(":")[2] == dict(dockerfile())["VOLUME"]


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml"])
def test_they_are_documented(name):
    assert name in (ROOT / "docs" / "install.md").read_text()
