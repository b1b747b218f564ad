"""What people type who come from vLLM, llama.cpp or Ollama is taken, or refused with what to do instead."""

import argparse

import pytest

from lullm import EngineArgs
from lullm.cli.flag import elsewhere
from lullm.cli.flag.key import API_KEY_VARIABLE, gather_keys
from lullm.cli.flag.settings import apply_settings
from lullm.cli.flag.vllm import VllmFlag
from lullm.cli.main import COMMANDS, build_parser, main
from lullm.cli.parser import chosen, with_sub_parsers
from lullm.config.option.vllm import VLLM_OPTIONS, VLLM_SERVER_OPTIONS
from lullm.errors import ConfigError


def said(capsys, *argv: str) -> str:
    """The error of a command line."""
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args(argv)
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("argv", "model"),
    [
        (("--trust-remote-code", "demo"), "demo"),
        (("demo", "--compilation-config", '{"level": 3}', "--no-enable-log-requests"), "demo"),
        (("demo", "--cudagraph-capture-sizes", "1", "2", "4"), "demo"),
        (("--limit-mm-per-prompt", "{}", "demo", "--generation-config", "auto", "--cpu-offload-gb", "0"), "demo"),
        (("--disable-fastapi-docs",), "refused"),
        (("demo", "--uvicorn-log-level", "info", "--enable-auto-tool-choice", "--response-role=assistant"), "demo"),
    ],
)
def test_a_flag_of_vllms_that_asks_for_nothing(argv, model, capsys):
    """They were unrecognized, though `LLM` takes the same options."""
    if model == "refused":
        assert "--disable-fastapi-docs is not supported: /docs is part" in said(capsys, "serve", *argv)
    else:
        args = build_parser().parse_args(["serve", *argv])
        assert args.positional_model == model
        own = {"log_level", "enable_log_requests"}
        assert not vars(args).keys() & (VLLM_OPTIONS.keys() | VLLM_SERVER_OPTIONS.keys()) - own


def test_a_flag_of_vllms_that_asks_for_something(capsys):
    assert said(capsys, "serve", "--headless").endswith("lullm serves from one")
    assert "or give `hf_overrides`" in said(capsys, "run", "demo", "hi", "--hf-config-path", "x")


def test_each_flag_of_vllms_is_there(capsys):
    serve, _ = chosen(build_parser(), ["serve"])
    for name in {**VLLM_OPTIONS, **VLLM_SERVER_OPTIONS}:
        assert f"--{name.replace('_', '-')}" in serve.with_flags()._option_string_actions
    hidden = [name for name, action in serve._option_string_actions.items() if isinstance(action, VllmFlag)]
    assert hidden and not set(hidden) & set(serve.shown_flags)


def test_a_choice_that_is_none_is_told_what_python_tells(capsys):
    """`--quantization awq` said 'choose from int8, int4', and not that the checkpoint itself says how."""
    assert "leave it out for GGUF files and quantized checkpoints" in said(capsys, "serve", "demo", "-q", "awq")
    assert "leave it out for GGUF files" in said(capsys, "run", "demo", "hi", "--load-format", "gguf")


def test_vllms_short_flags():
    args = build_parser().parse_args(["serve", "-tp", "2", "-pp=2", "-dp", "3", "-q", "int8", "-ep"])
    assert (args.tensor_parallel_size, args.pipeline_parallel_size, args.data_parallel_size) == (2, 2, 3)
    assert (args.quantization, args.enable_expert_parallel) == ("int8", True)


def test_a_script_with_vllms_flags():
    """`EngineArgs.add_cli_args` had lullm's flags only."""
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    args = parser.parse_args(["--trust-remote-code", "--disable-log-stats", "-tp", "1", "--max-num-seqs", "3"])
    assert EngineArgs.from_cli_args(args).given == {"max_num_seqs": 3}


@pytest.mark.parametrize(
    ("argv", "advice"),
    [
        ("serve -m x.gguf -ngl 99", "there is no -ngl: --device says where"),
        ("serve -hf org/name", "there is no -hf: the hub id is the model"),
        ("run -m x.gguf -p hello", "there is no -p: the model and the prompt stand without flags"),
        ("serve demo -np 4", "--max-num-seqs"),
        ("serve demo -t 8", "there is no -t: it is --threads"),
        ("serve demo -ctk q8_0", "--kv-cache-dtype int8"),
        ("chat demo --n-predict=5", "--max-tokens"),
        ("run demo hi --keepalive 5m", "--sleep-after"),
        ("serve demo -O.level=3", "there is no -O: nothing is compiled"),
        ("serve demo -d 2", "unrecognized arguments: -d 2"),
        ("complete --url x", "there is no 'complete': `lullm run --raw"),
        ("create small -f Modelfile", "Modelfiles are not read"),
        ("stop demo", "`lullm sleep`"),
        ("-m x.gguf -p hello", "a command comes before -m; `lullm --help` lists them"),
        ("bench --model demo", "a command comes before --model; `lullm bench --help` lists them"),
        ("help run", "`lullm COMMAND --help`"),
        ("bench serve --base-url x", "it is --url"),
    ],
)
def test_habits(argv, advice, capsys):
    """`-ngl` was read as `-n gl`, `-hf` printed the help, `-np` was no number, and `-d` an abbreviation of `-dp`."""
    assert advice in said(capsys, *argv.split())


def test_a_flag_that_a_command_has_is_its_own():
    assert build_parser().parse_args(["bench", "latency", "--batch-size", "3"]).batch_size == 3
    assert build_parser().parse_args(["run", "demo", "--", "-p"]).words == ["demo", "-p"]


def test_vllms_help_of_all_flags(capsys):
    with pytest.raises(SystemExit, match="0"):
        build_parser().parse_args(["serve", "--help=all"])
    assert "--max-num-seqs" in capsys.readouterr().out


def test_no_advice_hides_a_flag_or_a_command():
    flags = {name for each in with_sub_parsers(build_parser()) for name in each.shown_flags}
    assert not elsewhere.COMMANDS.keys() & {command.name for command in COMMANDS}
    assert {"--batch-size", "--num-prompts", "-i", "--lora"} >= elsewhere.FLAGS.keys() & flags, (
        "measurements have their own"
    )


def test_what_the_advice_names_is_there():
    known = {name for each in with_sub_parsers(build_parser()) for name in each._option_string_actions}
    for advice in [*elsewhere.FLAGS.values(), *elsewhere.COMMANDS.values(), *elsewhere.VARIABLES.values()]:
        for word in advice.replace("`", " ").replace(",", " ").replace(";", " ").split():
            assert not word.startswith("--") or word in known, advice


def test_a_settings_file_of_vllms(tmp_path):
    """Its flags were unknown, and values that are no text refused."""
    file = tmp_path / "vllm.yaml"
    file.write_text(
        "trust-remote-code: true\ncompilation-config: {level: 3}\nuvicorn-log-level: info\n"
        "override-generation-config: {temperature: 0.0}\ncudagraph-capture-sizes: [1, 2]\nmax-model-len: 128\n"
        "limit-mm-per-prompt: {image: 1}\nmm-processor-kwargs: {max_pixels: 9}\n"
    )
    parser = build_parser()
    argv = ["serve", "demo", "--config", str(file)]
    apply_settings(*chosen(parser, argv), {}, set)
    args = parser.parse_args(argv)
    assert (args.override_generation_config, args.max_model_len) == ('{"temperature": 0.0}', 128)
    assert args.limit_mm_per_prompt == '{"image": 1}'
    assert args.mm_processor_kwargs == '{"max_pixels": 9}'
    file.write_text("media-io-kwargs: {size: 1}")
    with pytest.raises(SystemExit, match="2"):
        apply_settings(*chosen(build_parser(), argv), {}, set)


def test_variables_of_vllm(monkeypatch, capsys, tmp_path):
    """They were not read, and nobody was told so."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    monkeypatch.setenv("VLLM_X", "1")
    assert main(["run", "demo", "hello", "--temperature", "-1"]) == 2
    assert (
        "set nothing here: VLLM_CPU_KVCACHE_SPACE (--kv-cache-memory-bytes does), VLLM_X\n" in capsys.readouterr().err
    )


def test_a_key_for_another_server_does_not_leave_this_one_open(monkeypatch):
    """`VLLM_API_KEY=secret lullm serve` served everybody."""
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with pytest.raises(ConfigError, match="VLLM_API_KEY is not read, and the server would be open; set LULLM_API_KEY"):
        gather_keys((), (), API_KEY_VARIABLE)
    assert gather_keys(("own",), (), API_KEY_VARIABLE) == ("own",)
    monkeypatch.setenv(API_KEY_VARIABLE, "mine")
    assert gather_keys((), (), API_KEY_VARIABLE) == ("mine",)
