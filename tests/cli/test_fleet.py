"""`lullm serve` of several models: what the command line and the file say, and what is refused."""

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest
from kit.ready_process import ReadyPopen

from lullm.cli.fleet import fleet_options, model_specs
from lullm.cli.main import build_parser, main
from lullm.cli.remote.ps import _rows
from lullm.errors import ConfigError

FILE = """\
"*":
  max-num-seqs: 4
  sleep_after: 5m:1,1h:2
small:
  model: demo
  aliases: [tiny, default]
  preload: true
big:
  path: some/folder
  max-model-len: 4k
  max-num-seqs: 2
  kv-cache-memory-bytes: 64MiB
  pinned: yes
  evict-to: unload
"""


def parsed(*argv):
    args = build_parser().parse_args(["serve", *argv])
    options = fleet_options(args)
    return options, None if options is None else model_specs(args, options)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE)
    return path


def test_one_model_is_no_fleet():
    assert parsed() == (None, None) and parsed("demo") == (None, None)
    assert parsed("--port", "0", "demo")[0] is None


def test_models_of_the_command_line():
    options, specs = parsed("demo", "big=some/folder", "--memory-budget", "8GiB", "--max-num-seqs", "4")
    assert options.memory_budget == 8 << 30
    assert [(spec.name, spec.config.model, spec.config.served_model_name) for spec in specs] == [
        ("demo", "demo", "demo"),
        ("big", "some/folder", "big"),
    ]
    assert {spec.config.max_num_seqs for spec in specs} == {4}
    assert {spec.config.swap_space for spec in specs} == {0.0}, "a second pool in the same memory"
    assert parsed("a", "--port", "0", "b", "--swap-space", "1")[1][1].config.swap_space == 1.0
    assert [spec.name for spec in parsed("demo", "--memory-budget", "1GiB")[1]] == ["demo"]
    assert [spec.name for spec in parsed("--model", "m", "--memory-budget", "1GiB")[1]] == ["m"]
    [spec] = parsed("m", "--memory-budget", "1GiB", "--wake-timeout", "9")[1]
    assert spec.config.idle.wake_timeout == 9, "requests wake it without a ladder, too"


def test_models_of_a_file(file):
    options, specs = parsed("demo", "--models-config", str(file), "--max-num-batched-tokens", "512")
    demo, small, big = specs
    assert (demo.name, demo.config.max_num_seqs, demo.config.sleep_after) == ("demo", 128, None)
    assert (small.name, small.config.model, small.aliases, small.preload, small.pinned) == (
        "small",
        "demo",
        ("tiny", "default"),
        True,
        False,
    )
    assert (small.config.max_num_seqs, len(small.config.idle.rungs)) == (4, 2)
    assert (big.config.model, big.config.max_model_len, big.config.max_num_seqs) == ("some/folder", 4000, 2)
    assert big.config.kv_cache_memory_bytes == 64 << 20
    assert big.pinned and big.eviction is None
    assert {spec.config.max_num_batched_tokens for spec in specs} == {512}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("small: demo", "the section 'small' must hold keys"),
        ("small: {}", "small: say which model"),
        ("small: {model: demo, max-num-sequences: 3}", "has no flag --max-num-sequences; did you mean max-num-seqs"),
        ("small: {model: demo, enable-sleep-mode: true}", "has no flag --enable-sleep-mode"),
        ("small: {model: demo, sleep-after: 5}", "is not TIME:DEPTH"),
        ("- demo", "must hold a section for each model"),
        ("small: {model: ''}", "has no folder or hub id"),
        ("small: {model: demo, lora-modules: sql=/x}", "'small' has lora_modules, which need enable_lora=True"),
        ("small: {model: demo, enable-lora: yes, lora-modules: sql}", "lora_modules takes NAME=PATH, not 'sql'"),
        ("small: {model: demo, enable-lora: yes, lora-modules: {sql: 3}}", "takes a text or a number"),
        ("small: {model: demo, enable-lora: yes, lora-modules: {'': /x}}", "lora_modules takes NAME=PATH, not '=/x'"),
        ("small: {model: demo, enable-lora: yes, lora-modules: [{name: 2020-01-01}]}", "takes NAME=PATH, not"),
        ("'': {model: demo}", "a model name must not be empty"),
    ],
)
def test_what_a_file_may_not_say(tmp_path, text, words):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        parsed("--models-config", str(path))


@pytest.mark.parametrize(
    "text",
    [
        "{sql: /x, law: /y}",
        "[sql=/x, law=/y]",
        "[{name: sql, path: /x, base_model_name: small}, law=/y]",
        '[\'{"name": "sql", "path": "/x"}\', law=/y]',
    ],
)
def test_adapters_of_a_model(tmp_path, text):
    path = tmp_path / "fleet.yaml"
    section = f"{{model: demo, enable-lora: yes, max-loras: 2, lora-modules: {text}}}"
    path.write_text(f"small: {section}\nbig: {{model: demo}}")
    small, big = parsed("--models-config", str(path))[1]
    assert [(module.name, module.path) for module in small.lora_modules] == [("sql", "/x"), ("law", "/y")]
    assert (small.config.enable_lora, small.config.max_loras, big.config.enable_lora) == (True, 2, False)
    assert not big.lora_modules


def test_a_wrong_value_names_its_section(tmp_path, capsys):
    path = tmp_path / "fleet.yaml"
    path.write_text("small: {model: demo, max-num-seqs: many}")
    with pytest.raises(SystemExit, match="2"):
        parsed("--models-config", str(path))
    assert f"--models-config {path}: small: argument --max-num-seqs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("a", "b", "--served-model-name", "c"), "--served-model-name is for one model; name each of several"),
        (("demo", "--max-model-wait", "5"), "--max-model-wait is for several models"),
        (("--memory-budget", "1GiB"), "no model is named"),
        (("a=", "b", "--memory-budget", "1GiB"), "the model 'a' has no folder or hub id; write NAME=MODEL"),
        (("demo", "demo", "--memory-budget", "1GiB"), "two models are called 'demo'; name one of them: NAME=MODEL"),
        (("a=demo", "b=demo", "--memory-budget", "4MiB"), "and the memory budget is 4.0 MiB"),
        (("a=demo", "b=nowhere", "--memory-budget", "1GiB"), "nowhere"),
        (("a=demo", "b=demo", "--data-parallel-size", "2"), "a model of a fleet has one worker"),
        (("a=demo", "b=demo", "--model-slice", "9", "--max-model-wait", "5"), "must be below --max-model-wait"),
        (("a=demo", "b=demo", "--lora-modules", "sql=/x"), "--lora-modules needs --enable-lora"),
        (("a=demo", "b=demo", "--enable-lora", "--lora-modules", "sql"), "--lora-modules takes NAME=PATH, not 'sql'"),
        (
            ("a=demo", "b=demo", "--enable-lora", "--lora-modules", "sql=/x"),
            "--lora-modules sql: say which model the adapter is for: send model (base_model_name in --lora-modules)",
        ),
    ],
)
def test_what_is_refused(argv, words, capsys):
    assert main(["serve", "--port", "0", *argv]) == 2
    assert words in capsys.readouterr().err


TEXT = """\
# TYPE lullm_memory_budget_bytes gauge
lullm_memory_budget_bytes 100.0
# TYPE lullm_model_state gauge
lullm_model_state{model_name="a",state="awake"} 1.0
lullm_model_state{model_name="b",state="falling_asleep"} 1.0
"""
OF_MODEL = """\
lullm_num_kv_blocks_used{model_name="M"} 1.0
lullm_num_kv_blocks{model_name="M"} 8.0
lullm_num_requests_running{model_name="M"} 2.0
lullm_num_requests_waiting{model_name="M"} 0.0
lullm_num_requests_swapped{model_name="M"} 0.0
lullm_engine_idle_seconds{model_name="M"} 75.0
lullm_engine_sleep_state{model_name="M",state="awake"} 1.0
"""


def test_ps_has_a_row_for_each_model():
    rows = _rows(TEXT + OF_MODEL.replace("M", "a") + OF_MODEL.replace("M", "b"))
    assert [row[:3] for row in rows] == [("a", "awake", "2"), ("b", "falling asleep", "2")]
    assert rows[0][-2:] == ("1m15s", "-")


def test_serve_several(file, tmp_path):
    file.write_text("'*': {max-num-seqs: 4}\nsmall: {model: demo, preload: true}\n")
    argv = ["serve", "one=demo", "--models-config", str(file), "--memory-budget", "200MiB", "--port", "0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-W", "error", "-m", "lullm.cli.main", *argv]
    with ReadyPopen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        assert line.startswith("lullm is ready on http://"), process.communicate()
        with httpx.Client(base_url=line.split()[-1], timeout=60) as http:
            for name in ("one", "small"):
                answer = http.post("/v1/completions", json={"model": name, "prompt": "Once", "max_tokens": 4})
                assert answer.json()["model"] == name, answer.text
            assert {card["id"]: card["state"] for card in http.get("/models").json()["data"]} == {
                "one": "awake",
                "small": "awake",
            }
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0 and "Traceback" not in err, err
