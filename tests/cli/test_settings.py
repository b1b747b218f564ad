"""Settings from a file and from variables: the command line wins over variables, and they over the file."""

import pytest

from lullm.cli.flag.engine import engine_config
from lullm.cli.flag.model import is_model_name, split_model, take_model
from lullm.cli.flag.settings import apply_settings, flag_of, variable_of
from lullm.cli.main import all_flags, build_parser, main
from lullm.cli.parser import chosen
from lullm.config.lora.module import parse_module
from lullm.errors import ConfigError


def parse(argv, environment=None, text=None, tmp_path=None):
    """The arguments of a command line, with a file of `text` if there is one."""
    if text is not None:
        path = tmp_path / "lullm.yaml"
        path.write_text(text)
        argv = [*argv, "--config", str(path)]
    parser = build_parser()
    command, rest = chosen(parser, argv)
    apply_settings(command, rest, environment or {}, all_flags)
    return parser.parse_args(argv)


def test_a_file(tmp_path):
    text = (
        "max-model-len: 4k\nmax_num_seqs: 7\nenable-prefix-caching: false\nport: 9\napi-key: [a, b]\nenforce_eager: yes"
    )
    args = parse(["serve"], text=text, tmp_path=tmp_path)
    config = engine_config(args)
    assert (config.max_model_len, config.max_num_seqs, config.enable_prefix_caching) == (4000, 7, False)
    assert config.enforce_eager and args.port == 9 and args.api_keys == ["a", "b"]


def test_a_list_for_a_flag_that_takes_several(tmp_path):
    args = parse(["serve"], text="served-model-name: [small, 7]\nport: 9", tmp_path=tmp_path)
    assert (args.served_model_name, args.model_aliases, args.port) == ("small", ("7",), 9)


@pytest.mark.parametrize("text", ["{a: /x, b: ./y}", "[a=/x, b=./y]", "[{name: a, path: /x}, b=./y]"])
def test_adapters_by_their_names(tmp_path, text):
    args = parse(["serve"], text=f"lora-modules: {text}", tmp_path=tmp_path)
    assert [(each.name, each.path) for each in map(parse_module, args.lora_modules)] == [("a", "/x"), ("b", "./y")]


def test_a_date_in_json_is_a_text(tmp_path):
    """It was a traceback."""
    args = parse(["serve"], text="hf-overrides: {since: 2020-01-01}", tmp_path=tmp_path)
    assert args.hf_overrides == '{"since": "2020-01-01"}'


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["small", "7"]', ("small", "7")),
        ("small", ("small",)),
        ("[END]", ("[END]",)),
        ("[1", ("[1",)),
    ],
)
def test_a_list_in_a_variable(text, names):
    """A variable held one name only."""
    args = parse(["serve"], {"LULLM_SERVED_MODEL_NAME": text})
    assert (args.served_model_name, *args.model_aliases) == names


def test_a_list_in_a_variable_for_a_flag_that_takes_one():
    with pytest.raises(ConfigError, match="LULLM_PORT: --port takes one value"):
        parse(["serve"], {"LULLM_PORT": "[1, 2]"})


def test_who_wins(tmp_path):
    text = "max-num-seqs: 7\nmax-num-batched-tokens: 70\nblock-size: 32\nport: 7"
    variables = {"LULLM_MAX_NUM_SEQS": "8", "LULLM_MAX_NUM_BATCHED_TOKENS": "80", "LULLM_PORT": "8"}
    args = parse(["serve", "--max-num-seqs", "9"], variables, text, tmp_path)
    config = engine_config(args)
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.block_size, args.port) == (9, 80, 32, 8)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("off", False), ("", False)])
def test_switches(text, value):
    assert engine_config(parse(["serve"], {"LULLM_ENFORCE_EAGER": text})).enforce_eager is value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-modell-len: 3", "no flag --max-modell-len; did you mean max-model-len?"),
        ("- 3", "must hold lines like"),
        ("a: [", "cannot be read"),
        ("port: [1, 2]", "--port takes one value"),
        ("port: {a: 1}", "takes a text or a number"),
        ("enforce-eager: perhaps", "is on or off, not 'perhaps'"),
        ("config: other.yaml", "no flag --config"),
        ("? [a]\n: 3", "cannot be read"),
        ("3: 4", "must hold lines like"),
    ],
)
def test_wrong_files(text, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        parse(["serve"], text=text, tmp_path=tmp_path)
    assert words in str(caught.value)


def test_a_file_that_is_not_there(capsys):
    assert main(["serve", "--config", "/no/such/file.yaml"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_wrong_values_are_told_as_those_of_the_command_line(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(["serve"], text="port: nine", tmp_path=tmp_path)
    assert "lullm.yaml: argument --port: invalid int value: 'nine'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        parse(["serve", "--port", "9"], {"LULLM_HOST": "h", "LULLM_MAX_MODEL_LEN": "abc"})
    assert "error: LULLM_MAX_MODEL_LEN: argument -c/--max-model-len: 'abc' is not" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        parse(["serve", "--port", "nine"], {"LULLM_HOST": "h"})
    assert "error: argument --port: invalid int" in capsys.readouterr().err


def test_a_variable_that_sets_nothing_is_named(capsys):
    parse(["serve"], {"LULLM_MAX_MODEL_LENGTH": "3", "LULLM_API_KEY": "k", "OTHER": "x"})
    err = capsys.readouterr().err
    assert err == "lullm: the variable LULLM_MAX_MODEL_LENGTH sets nothing; did you mean LULLM_MAX_MODEL_LEN?\n"
    parse(["run"], {"LULLM_PORT": "3"})  # of another command
    assert capsys.readouterr().err == ""


def test_names():
    assert flag_of("LULLM_MAX_MODEL_LEN") == flag_of("max_model_len") == "--max-model-len"
    assert variable_of("--max-model-len") == "LULLM_MAX_MODEL_LEN"


def test_a_model_of_the_settings_gives_way():
    variables = {"LULLM_MODEL": "theirs"}
    args = parse(["serve"], variables)
    take_model(args, args.positional_model)
    assert args.model == "theirs"
    for argv in (["serve", "mine"], ["serve", "--model", "mine"]):
        args = parse(argv, variables)
        take_model(args, args.positional_model)
        assert args.model == "mine"
    args = parse(["run", "mine", "hi"], variables)
    assert (split_model(args), args.model) == (["hi"], "mine")
    args = parse(["run", "say hi"], variables)
    assert (split_model(args), args.model) == (["say hi"], "theirs")


@pytest.mark.parametrize(
    ("words", "flags", "model", "prompts"),
    [
        (["demo", "hi"], [], "demo", ["hi"]),
        (["Qwen/Qwen3-0.6B", "hi there", "bye"], [], "Qwen/Qwen3-0.6B", ["hi there", "bye"]),
        (["unsloth/Qwen3-GGUF:Q4_K_M"], [], "unsloth/Qwen3-GGUF:Q4_K_M", []),
        (["./model.gguf", "hi"], [], "./model.gguf", ["hi"]),
        (["What is 17 + 25?", "Bye!"], [], None, ["What is 17 + 25?", "Bye!"]),
        (["-"], [], None, ["-"]),
        (["hello"], ["--model", "demo"], "demo", ["hello"]),
        ([], [], None, []),
    ],
)
def test_which_word_is_the_model(words, flags, model, prompts):
    args = parse(["run", *flags, *words])
    assert split_model(args) == prompts
    assert getattr(args, "model", None) == model


def test_a_folder_with_blanks_names_a_model(tmp_path):
    folder = tmp_path / "my model"
    assert not is_model_name(str(folder))
    folder.mkdir()
    assert is_model_name(str(folder))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["srve"], "there is no 'srve'; did you mean serve?"),
        (["serve", "--max-modle-len", "3"], "unrecognized arguments: --max-modle-len; did you mean --max-model-len?"),
        (["serve", "--dtype", "bfloat"], "--dtype: there is no 'bfloat'; did you mean bfloat16?"),
        (["serve", "--max-model-len", "3x"], "'3x' is not a number of tokens like 4096, 32k or 32K"),
    ],
)
def test_misspelt(argv, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert words in capsys.readouterr().err


def test_lullm_alone_prints_help(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "usage: lullm" in out and "examples:" in out and "lullm serve path/to/folder" in out


@pytest.mark.parametrize("text", ["32k", "32K", "1M", "77"])
def test_short_flags_and_sizes(text):
    args = parse(["run", "-m", "demo", "-c", text, "-n", "5", "--temp", "0.5", "--stop", "a", "--stop", "b", "hi"])
    assert engine_config(args).max_model_len == {"32k": 32000, "32K": 32768, "1M": 1 << 20, "77": 77}[text]
    assert (args.max_tokens, args.temperature, args.stop, args.words) == (5, 0.5, ["a", "b"], ["hi"])
