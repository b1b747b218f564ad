"""Flags: every engine option has one, of the right type, with a help text; mistakes are told in one line."""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
from typing import get_args

import pytest

import lullm
from lullm.cli.flag.engine import byte_count, engine_config
from lullm.cli.flag.sampling import sampling_changes
from lullm.cli.main import COMMANDS, build_parser, main
from lullm.cli.parser import chosen
from lullm.cli.talk.chat import NOT_ENGINE
from lullm.config.engine import EngineConfig
from lullm.config.option.option import Group
from lullm.weights.folder import resolve_model


def parse(*argv: str) -> argparse.Namespace:
    return build_parser().parse_args(argv)


@pytest.mark.parametrize("command", ["serve", "run", "chat"])
def test_help_names_every_flag(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    for field in dataclasses.fields(EngineConfig):
        is_shown = command == "serve" or field.name not in NOT_ENGINE - {"seed"}
        assert ("--" + field.name.replace("_", "-") in text) == is_shown, "a flag is there if it can matter"
    parser, _ = chosen(build_parser(), [command])
    assert [action for action in parser._actions if not action.help] == []


def test_flags_stand_in_groups(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    titles = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    groups = [f"{group}:" for group in get_args(Group)]
    assert titles[-len(groups) :] == groups
    assert text.index("KV cache:") < text.index("--block-size N", text.index("KV cache:")) < text.index("scheduling:")


def test_no_flags_are_the_defaults():
    assert engine_config(parse("serve")) == EngineConfig()
    assert engine_config(parse("run", "x")) == EngineConfig()
    assert engine_config(parse("chat")) == EngineConfig()


def test_flags_have_their_types():
    config = engine_config(
        parse(
            *("serve", "--model", "m", "--served-model-name", "s", "--dtype", "bfloat16", "--max-num-seqs", "7"),
            *("--kv-cache-memory-bytes", "1.5GiB", "--watermark", "0.1", "--no-enable-prefix-caching"),
            *("--scheduling-policy", "priority", "--seed", "none", "--enforce-eager", "--max-model-len", "99"),
        )
    )
    assert config == EngineConfig(
        model="m",
        served_model_name="s",
        dtype="bfloat16",
        max_num_seqs=7,
        kv_cache_memory_bytes=3 * 2**29,
        watermark=0.1,
        enable_prefix_caching=False,
        scheduling_policy="priority",
        seed=None,
        enforce_eager=True,
        max_model_len=99,
    )
    assert engine_config(parse("serve", "--seed", "3")).seed == 3


def test_a_flag_that_is_given_twice_is_a_tuple():
    flags = ("--allowed-media-domains", "a.example", "--allowed-media-domains", "b.example")
    hosts = ("a.example", "b.example")
    assert engine_config(parse("serve", *flags)).allowed_media_domains == hosts
    assert engine_config(parse("run", *flags, "demo")) == EngineConfig(allowed_media_domains=hosts)
    assert EngineConfig.from_options({"allowed_media_domains": list(hosts)}).allowed_media_domains == hosts


def test_a_served_model_may_have_several_names():
    args = parse("serve", "--served-model-name", "a", "b", "c", "--port", "0")
    assert engine_config(args).served_model_name == "a" and args.model_aliases == ("b", "c")
    assert parse("serve").model_aliases == ()
    config = engine_config(parse("serve", "--enable-sleep-mode", "--sleep-dir", "d", "--no-verify-wake"))
    assert config == EngineConfig(enable_sleep_mode=True, sleep_dir="d", verify_wake=False)
    ladder = ("--sleep-after", "60s:1,10m:disk", "--wake-timeout", "9.5", "--max-num-wake-waiting", "7")
    config = engine_config(parse("serve", "--enable-sleep-mode", *ladder))
    idle = config.idle
    assert idle.wakes_by_request and (idle.wake_timeout, idle.max_num_wake_waiting) == (9.5, 7)
    assert [(rung.idle_s, rung.level, rung.backup) for rung in idle.rungs] == [
        (60, 1, "auto"),
        (600, 1, "disk"),
    ]
    config = engine_config(parse("serve", "--enable-sleep-mode", "--sleep-after", "60s:1", "--no-auto-wake"))
    assert not config.idle.wakes_by_request and config.idle.rungs
    assert engine_config(parse("serve", "--enable-sleep-mode", "--auto-wake")).idle.wakes_by_request


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("10", 10), ("10b", 10), ("1k", 1024), ("2MiB", 2 << 20), ("1.5g", 3 << 29)]
)
def test_sizes(text, num_bytes):
    assert byte_count(text) == num_bytes


@pytest.mark.parametrize("text", ["", "x", "1.5", "1 GB", "1gg", "nanm", "infm", "1.5.5m"])
def test_sizes_that_are_none(text):
    with pytest.raises(argparse.ArgumentTypeError):
        byte_count(text)


def test_the_seed_of_run_is_the_answers():
    args = parse("run", "x", "--seed", "5", "--temperature", "0", "--top-k", "3")
    assert engine_config(args).seed == EngineConfig().seed
    assert sampling_changes(args) == {"seed": 5, "temperature": 0, "top_k": 3}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "say x", "--temperature", "-1"], "--temperature must be"),
        (["run", "say x", "--max-tokens", "0"], "--max-tokens must be"),
        (["run", "say x", "--raw", "--system", "be kind"], "--system: for conversations"),
        (["run", "say x", "--raw", "--think", "--reasoning-parser", "qwen3"], "--reasoning-parser, --think: for conv"),
        (["run", "say x", "--chat-template", "/no/such/file"], "/no/such/file does not exist"),
        (["run", "say x", "--chat-template", "/dev/null"], "--chat-template: /dev/null is not a regular file; give a"),
        (["run", "say x", "--chat-template", "/dev"], "--chat-template: /dev cannot be read: Is a directory; give a"),
        (["run", "say x", "--chat-template", "{% if"], "chat template is not valid"),
        (
            ["run", "say x", "--speculative-config", '{"method": "ngram"}'],
            'config needs "num_speculative_tokens"',
        ),
        (
            ["run", "say x", "--speculative-config", '{"model": "x", "num_speculative_tokens": 0}'],
            "--speculative-config: num_speculative_tokens must be",
        ),
        (
            ["run", "say x", "--override-generation-config", '{"top": 1}'],
            '--override-generation-config has some of "temperature", "top_p"',
        ),
        (["run", "say x", "--attention-backend", "triton"], "needs device='cuda'"),
        (["run", "say x", "--model", "/no/such/folder"], "/no/such/folder"),
        (["chat", "--top-p", "7"], "--top-p must be"),
        (["serve", "--max-num-seqs", "0"], "--max-num-seqs must be"),
        (["serve", "--port", "99999"], "--port must be"),
        (["serve", "--drain-timeout", "-1"], "--drain-timeout must be"),
        (["serve", "--drain-timeout", "nan"], "--drain-timeout must be"),
        (["serve", "--api-key", ""], "API key"),
        (["serve", "--api-key", "é"], "printable ASCII"),
        (["serve", "--admin-key", " x"], "no blanks"),
        (["serve", "--allowed-origin", ""], "origin"),
        (["serve", "--max-connections", "0"], "--max-connections must be"),
        (["serve", "--allowed-host", "a:80"], "without a port"),
        (["serve", "--admin-key", ""], "admin key"),
        (["serve", "--port", "0", "--admin-key", "k"], "--enable-sleep-mode"),
        (["serve", "--port", "0", "--host", "0.0.0.0", "--enable-sleep-mode"], "set an --admin-key"),
        (["serve", "--sleep-dir", "."], "needs --enable-sleep-mode"),
        (["serve", "--no-verify-wake"], "needs --enable-sleep-mode"),
        (
            ["serve", "--port", "0", "--enable-sleep-mode", "--sleep-dir", "/no/such/folder"],
            "is not a folder that exists",
        ),
        (["serve", "--sleep-after", "60s:1"], "needs --enable-sleep-mode"),
        (["serve", "--enable-sleep-mode", "--sleep-after", "60:1"], "'60' is not a time like"),
        (["serve", "--enable-sleep-mode", "--sleep-after", "60s:disk,10m:1"], "must be deeper"),
        (["serve", "--auto-wake"], "needs --enable-sleep-mode"),
        (["serve", "--enable-sleep-mode", "--wake-timeout", "5"], "no request wakes the engine"),
        (["serve", "--enable-sleep-mode", "--auto-wake", "--wake-timeout", "0"], "--wake-timeout must be"),
        (
            ["serve", "--enable-sleep-mode", "--auto-wake", "--max-num-wake-waiting", "0"],
            "--max-num-wake-waiting must be",
        ),
        (["serve", "--host", "192.0.2.1"], "cannot listen"),
        (["serve", "--port", "0", "--model", "/no/such/folder"], "/no/such/folder"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(argv, words, capsys):
    assert main(argv) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("lullm: error: ") and words in lines[0]


def test_a_key_of_a_file_is_no_flag(tmp_path, capsys):
    folder = shutil.copytree(resolve_model("demo"), tmp_path / "model")
    (folder / "tokenizer_config.json").write_text('{"chat_template": 3}')
    assert main(["run", "-m", str(folder), "hello"]) == 2
    assert "tokenizer_config.json: chat_template must be" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["fly"], ["serve", "--port", "x"], ["serve", "--dtype", "int3"]])
def test_wrong_usage(argv, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert "usage: lullm" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"lullm {lullm.__version__}\n"


def test_help_loads_no_command():
    """The flags of all commands would take five times as long as the rest, torch thirty times."""
    program = (
        "import sys, lullm.cli.main as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'asyncio', 'lullm.config.engine', 'lullm.cli.serve'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
        "print(sum(name.startswith('lullm') for name in sys.modules), file=sys.stderr)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    loaded, number = done.stderr.splitlines()
    assert loaded == "[]" and int(number) < 30 and "serve" in done.stdout


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.name not in ("bench", "completion")])
def test_a_command_loads_nothing_heavy_for_its_flags(command):
    """And it has a description: its flags were added."""
    program = (
        "import sys, lullm.cli.main as m\n"
        f"[parser, _] = m.chosen(m.build_parser(), [{command.name!r}])\n"
        "heavy = {'torch', 'numpy', 'fastapi', 'uvicorn', 'pydantic', 'tokenizers', 'jinja2', 'asyncio.events'}\n"
        "print(sorted(heavy & set(sys.modules)), bool(parser.description))"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[] True\n"
