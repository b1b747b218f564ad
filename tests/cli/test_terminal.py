"""`lullm run` and `lullm chat` with a tiny random model."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from kit.model.lora import merged, write_adapter

from lullm import LLM, SamplingParams
from lullm.cli.main import main
from lullm.cli.talk.conversation import COMMANDS
from lullm.cli.talk.terminal import Terminal
from lullm.engine.llm_engine import LLMEngine
from lullm.text.reply.event import Text, Thinking

MESSAGE = [{"role": "user", "content": "hello"}]
FLAGS = ("--dtype", "float32", "--temperature", "0", "--max-tokens", "12", "--num-gpu-blocks-override", "40")


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    """The texts of a direct run: continued, answered, answered with a system message."""
    params = SamplingParams(temperature=0, max_tokens=12)
    with LLM(str(qwen3_folder), dtype="float32", num_gpu_blocks_override=40) as llm:
        raw = llm.generate("hello", params, use_tqdm=False)[0].outputs[0].text
        conversations = [MESSAGE, [{"role": "system", "content": "be kind"}, *MESSAGE]]
        answers = [output.outputs[0].text for output in llm.chat(conversations, params, use_tqdm=False)]
    return raw, *answers


def printed(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def test_run_answers(qwen3_folder, expected, capsys):
    assert main(["run", "--model", str(qwen3_folder), *FLAGS, "hello"]) == 0
    assert capsys.readouterr() == (printed(expected[1]), "")


def test_run_continues(qwen3_folder, expected, capsys):
    assert main(["run", "--model", str(qwen3_folder), *FLAGS, "--raw", "hello"]) == 0
    assert capsys.readouterr().out == printed(expected[0])


def test_run_with_a_system_message(qwen3_folder, expected, capsys):
    assert main(["run", "--model", str(qwen3_folder), *FLAGS, "--system", "be kind", "hello"]) == 0
    assert capsys.readouterr().out == printed(expected[2])


def test_run_with_an_adapter(qwen3_folder, expected, tmp_path, capsys):
    adapter = write_adapter(tmp_path / "adapter", qwen3_folder, rank=20)
    params = SamplingParams(temperature=0, max_tokens=12)
    with LLM(str(merged(tmp_path / "merged", qwen3_folder, adapter)), dtype="float32") as llm:
        text = llm.chat(MESSAGE, params, use_tqdm=False)[0].outputs[0].text
    run = ["run", "--model", str(qwen3_folder), *FLAGS, "hello", "--lora"]
    assert main([*run, str(adapter)]) == 0
    assert capsys.readouterr() == (printed(text), "") and text != expected[1]
    assert main([*run, str(tmp_path)]) == 2 and "has no adapter_config.json" in capsys.readouterr().err
    assert main([*run, str(adapter), "--url", "http://127.0.0.1:1"]) == 2
    assert "a server's adapters are models" in capsys.readouterr().err


def test_run_several_prompts(qwen3_folder, expected, capsys):
    assert main(["run", "--model", str(qwen3_folder), *FLAGS, "hello", "hello", "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert out == f"> hello\n{printed(expected[1])}\n> hello\n{printed(expected[1])}"
    assert err.count("tokens/s") == 2 and "12 new" in err


def test_run_without_a_template(qwen3_folder, expected, tmp_path, capsys):
    folder = tmp_path / "plain"
    shutil.copytree(qwen3_folder, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert main(["run", "--model", str(folder), *FLAGS, "hello"]) == 0
    assert capsys.readouterr().out == printed(expected[0])
    assert main(["run", "--model", str(folder), *FLAGS, "--system", "be kind", "hello"]) == 2
    assert "chat template" in capsys.readouterr().err
    assert main(["chat", "--model", str(folder), *FLAGS]) == 2
    assert "no chat template" in capsys.readouterr().err


def test_a_model_that_only_pools_is_no_partner(qwen3_folder, capsys):
    """The greeting came, and each line was answered with the error."""
    for command in (["run", "hello"], ["chat"]):
        assert main([command[0], "--model", str(qwen3_folder), *FLAGS, "--runner", "pooling", *command[1:]]) == 2
        out, err = capsys.readouterr()
        assert "this model gives embeddings, not text" in err and "Talk to" not in err and not out


def test_run_prompt_too_long(qwen3_folder, capsys):
    assert main(["run", "--model", str(qwen3_folder), *FLAGS, "x" * 3000]) == 2
    assert "lullm: error: the prompt is too long" in capsys.readouterr().err


def test_the_answer_is_printed_as_it_comes(qwen3_folder, monkeypatch):
    class Recorder(io.StringIO):
        num_flushes = 0

        def flush(self) -> None:
            self.num_flushes += 1

    recorder = Recorder()
    monkeypatch.setattr(sys, "stdout", recorder)
    assert main(["run", "--model", str(qwen3_folder), *FLAGS, "--raw", "hello"]) == 0
    assert recorder.num_flushes > 6


@pytest.mark.parametrize(
    ("redirection", "code", "words"), [("> /dev/full", 2, "No space left"), (">&-", 0, ""), ("2>&-", 0, None)]
)
def test_output_that_nobody_takes(qwen3_folder, expected, redirection, code, words):
    """A closed stderr ended in an AttributeError, which nobody could see either."""
    program = "import sys; from lullm.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "run", "--model", str(qwen3_folder), *FLAGS, "hello"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *command], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == code and (words or "") in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == (printed(expected[1]) if words is None else "")


def test_a_model_whose_numbers_are_of_no_use(qwen3_folder, monkeypatch, capsys):
    from lullm.models.decoder import CausalLM

    compute_logits = CausalLM.compute_logits
    monkeypatch.setattr(CausalLM, "compute_logits", lambda *args: compute_logits(*args) * float("nan"))
    assert main(["run", "--model", str(qwen3_folder), *FLAGS, "hello"]) == 2
    assert "no token can be drawn" in capsys.readouterr().err


def test_what_ends_the_command_in_its_middle(qwen3_folder, capsys, monkeypatch):
    """torch's allocator raises RuntimeError; Python 3.11 turns Ctrl-C in the body of a class into one."""
    wrapped = RuntimeError("Error calling __set_name__ on 'Field' instance")
    wrapped.__cause__ = KeyboardInterrupt()
    for error, code, said in (
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"), 2, "can't allocate memory"),
        (MemoryError(), 2, "lullm: error: memory is short: no more can be had"),
        (
            ImportError("libcudart.so.13: cannot open shared object file"),
            2,
            "libcudart.so.13: cannot open shared object",
        ),
        (wrapped, 130, ""),
    ):
        monkeypatch.setattr(LLMEngine, "add_processed", raises(error))
        assert main(["run", "--model", str(qwen3_folder), *FLAGS, "--raw", "hello"]) == code
        found = capsys.readouterr().err
        assert said in found and "Traceback" not in found
    monkeypatch.setattr(LLMEngine, "add_processed", raises(RuntimeError("a mistake in lullm")))
    with pytest.raises(RuntimeError, match="a mistake"):
        main(["run", "--model", str(qwen3_folder), *FLAGS, "--raw", "hello"])


INTERRUPTED_IMPORT = """
import runpy, signal, sys

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "lullm.cli.parser":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
runpy.run_module("lullm", run_name="__main__")
"""


def test_ctrl_c_before_the_flags_are_read(monkeypatch, capsys):
    """The imports of the command take 0.2 s, and a typo is often seen as soon as it is sent off."""
    ran = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, "", "")
    monkeypatch.setattr("lullm.cli.main.build_parser", raises(KeyboardInterrupt()))
    assert main(["list"]) == 130 and capsys.readouterr().err == ""


def test_a_current_folder_that_is_gone(tmp_path, monkeypatch, capsys):
    """oneMKL said that it cannot load libtorch_cpu.so, and ended the process."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["list"]) == 2
    assert "the current folder cannot be used (No such file" in capsys.readouterr().err


def raises(error):
    def call(*_):
        raise error

    return call


def drawn_by(monkeypatch, *argv: str) -> list[tuple[float, int, float, float, int | None]]:
    """How the requests of a command draw."""
    seen = []

    def recorded(engine, request):
        params = request.params
        seen.append((params.temperature, params.top_k, params.top_p, params.min_p, params.max_tokens))
        raise KeyboardInterrupt

    monkeypatch.setattr(LLMEngine, "add_processed", recorded)
    assert main(["run", "-m", *argv, "--num-gpu-blocks-override", "40", "--dtype", "float32"]) == 130
    return seen


def test_what_a_model_leaves_open_is_llama_cpps(qwen3_folder, tmp_path, monkeypatch):
    """A published model of 135 M parameters wrote noise: its file says nothing, and nothing cut off the tail."""
    folder = tmp_path / "model"
    shutil.copytree(qwen3_folder, folder)
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 0}')
    assert drawn_by(monkeypatch, str(folder), "hello") == [(0.6, 0, 0.95, 0.05, None)]
    assert drawn_by(monkeypatch, str(folder), "hello", "--raw") == [(0.6, 0, 0.95, 0.05, 256)]
    assert drawn_by(monkeypatch, str(folder), "hello", "--min-p", "0", "-n", "9") == [(0.6, 0, 0.95, 0, 9)]
    override = ("--override-generation-config", '{"top_p": 0.5, "max_new_tokens": 7}')
    assert drawn_by(monkeypatch, str(folder), "hello", *override) == [(0.6, 0, 0.5, 0.05, 7)]
    assert drawn_by(monkeypatch, str(folder), "hello", "--generation-config", "vllm") == [(1, 0, 1, 0, None)]
    (folder / "generation_config.json").unlink()
    assert drawn_by(monkeypatch, str(folder), "hello") == [(0.8, 40, 0.95, 0.05, None)]


def test_answers_differ_unless_a_seed_is_given(qwen3_folder, capsys):
    """Each process drew the same: a story told twice was the same story."""
    draws = ("--temperature", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-n", "9", "hello")
    texts = {}
    for seed in ((), ("--seed", "7")):
        for _ in range(2):
            assert main(["run", "--model", str(qwen3_folder), "--num-gpu-blocks-override", "40", *draws, *seed]) == 0
            texts.setdefault(seed, set()).add(capsys.readouterr().out)
    assert (len(texts[()]), len(texts["--seed", "7"])) == (2, 1)


def test_a_limit_that_nobody_set_is_told(qwen3_folder, capsys):
    flags = ("--max-model-len", "64", "--num-gpu-blocks-override", "40", "--temp", "0")
    assert main(["run", "--model", str(qwen3_folder), *flags, "hello"]) == 0
    err = capsys.readouterr().err
    assert "lullm: cut after " in err and "the model's length is full" in err


def test_run_loads_no_web_stack(qwen3_folder):
    program = (
        "import sys; from lullm.cli.main import main; main(sys.argv[1:]);"
        "sys.exit(bool({'fastapi', 'uvicorn', 'prometheus_client', 'transformers'} & set(sys.modules)))"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program, "run", "--model", str(qwen3_folder), *FLAGS, "hello"]
    assert subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0


def interrupt_at_step(monkeypatch, number: int) -> list[LLMEngine]:
    """Ctrl-C comes in the middle of the n-th step from now."""
    step, engines, num_steps = LLMEngine.step, [], 0

    def interrupted_step(engine: LLMEngine):
        nonlocal num_steps
        num_steps += 1
        engines.append(engine)
        if num_steps == number:
            signal.raise_signal(signal.SIGINT)
        return step(engine)

    monkeypatch.setattr(LLMEngine, "step", interrupted_step)
    return engines


def test_interrupted_run(qwen3_folder, expected, monkeypatch, capsys):
    engines = interrupt_at_step(monkeypatch, 4)
    assert main(["run", "--model", str(qwen3_folder), *FLAGS, "--raw", "hello"]) == 130
    out = capsys.readouterr().out
    assert 0 < len(out) < len(expected[0]) and expected[0].startswith(out)
    assert engines[0].stats().finished_total["abort"] == 1 and engines[0].stats().num_used_blocks == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def talk(folder, monkeypatch, capsys, *lines: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
    code = main(["chat", "--model", str(folder), *FLAGS])
    return code, *capsys.readouterr()


def test_chat_keeps_the_history_until_reset(qwen3_folder, expected, monkeypatch, capsys):
    seen = []
    add_processed = LLMEngine.add_processed

    def recorded(engine, request):
        seen.append(engine.input_processor.detokenize(request.prompt_token_ids))
        add_processed(engine, request)

    monkeypatch.setattr(LLMEngine, "add_processed", recorded)
    code, out, err = talk(qwen3_folder, monkeypatch, capsys, "hello", "", "again", "/reset", "hello")
    assert code == 0 and "/help lists the commands" in err
    assert out.startswith(printed(expected[1])) and out.endswith(printed(expected[1]))
    first, second, third = seen
    assert first == third
    assert second == f"{first}{expected[1]}<|im_end|>\n<|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n"


def test_chat_without_an_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["chat"]) == 2
    assert "stdin is closed" in capsys.readouterr().err


def test_chat_ends_and_knows_its_commands(qwen3_folder, monkeypatch, capsys):
    code, out, err = talk(qwen3_folder, monkeypatch, capsys, "/help", "/fly", "/exit", "hello")
    assert (code, out) == (0, "") and "no command /fly; there are /help, /reset, /set" in err
    assert all(f"  {name} " in err for name in COMMANDS)


def test_ollamas_words(qwen3_folder, monkeypatch, capsys):
    """`/set parameter ...` was no setting and `/clear` no command, though the docs said that they are Ollama's."""
    lines = ("/set parameter max_tokens 3", "/set parameter num_predict 7", "/set", "/?", "/clear", "/bye")
    code, out, err = talk(qwen3_folder, monkeypatch, capsys, *lines)
    assert (code, out) == (0, "") and "max_tokens 3" in err and "/help" in err and "no command" not in err
    assert "no setting 'num_predict'; did you mean max_tokens?" in err


def test_chat_changes_its_settings(qwen3_folder, expected, monkeypatch, capsys):
    lines = ("/set max_tokens 3", "hello", "/reset", "/set max-tokens 12", "/set temp", "/set top_p 7", "hello", "/set")
    lines += ("/set seed 1.5", "/set top_p x")
    code, out, err = talk(qwen3_folder, monkeypatch, capsys, *lines)
    assert code == 0 and out.endswith(printed(expected[1])) and len(out) < 2 * len(printed(expected[1]))
    assert "no setting 'temp'; did you mean temperature?" in err and "top_p must be" in err
    assert "seed takes a whole number, not '1.5'" in err and "top_p takes a number, not 'x'" in err
    assert "  temperature 0.0\n  top_k 40\n  top_p 0.95\n  min_p 0.05\n  max_tokens 12\n" in err


def test_chat_changes_its_system_message(qwen3_folder, expected, monkeypatch, capsys):
    code, out, err = talk(qwen3_folder, monkeypatch, capsys, "/set system be kind", "hello", "/set", "/stats", "hello")
    assert code == 0 and out.startswith(printed(expected[2])) and "  system be kind" in err
    assert "statistics are shown" in err and "prompt tokens, " in err


def test_a_message_of_several_lines(qwen3_folder, monkeypatch, capsys):
    seen = []
    print_answer = Terminal.print_answer
    monkeypatch.setattr(
        Terminal, "print_answer", lambda *args: (seen.append(args[1][-1]["content"]), print_answer(*args))
    )
    code, _, _ = talk(
        qwen3_folder, monkeypatch, capsys, '"""one', "two", 'three"""', '"""four"""', '"""', "five", '"""'
    )
    assert code == 0 and seen == ["one\ntwo\nthree", "four", "five"]


def test_the_first_word_names_the_model(qwen3_folder, expected, monkeypatch, capsys):
    assert main(["run", str(qwen3_folder), *FLAGS, "hello"]) == 0
    assert capsys.readouterr().out == printed(expected[1])
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    assert main(["run", str(qwen3_folder), *FLAGS]) == 0
    assert capsys.readouterr().out == printed(expected[1])
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    assert main(["run", "--model", str(qwen3_folder), *FLAGS, "-"]) == 0
    assert capsys.readouterr().out == printed(expected[1])
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["run", str(qwen3_folder), *FLAGS]) == 2
    assert "there is no prompt" in capsys.readouterr().err
    assert main(["chat", str(qwen3_folder), "--model", "demo"]) == 2
    assert "two models" in capsys.readouterr().err


def test_a_word_that_was_meant_as_the_prompt(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["run", "Hello"]) == 2
    assert "'Hello' is the model, there is no prompt" in capsys.readouterr().err


def test_a_prompt_longer_than_a_file_name(capsys):
    """It ended in "File name too long", since the first words may name a model."""
    assert main(["run", "Tell me a story. " * 20, "--max-tokens", "1"]) == 0
    assert capsys.readouterr().out.strip()


def test_a_prompt_that_is_no_text(monkeypatch, capsys):
    """Strict, as in most locales: it ended in a traceback."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), "utf-8", "strict"))
    assert main(["run", "demo", "-"]) == 2
    assert "not valid Unicode" in capsys.readouterr().err


def test_run_without_a_prompt_is_a_conversation_on_a_terminal(qwen3_folder, expected, monkeypatch, capsys):
    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    answers = iter(["hello"])
    monkeypatch.setattr(sys, "stdin", Keyboard())
    monkeypatch.setattr("builtins.input", lambda mark: next(answers, None) or (_ for _ in ()).throw(EOFError))
    assert main(["run", str(qwen3_folder), *FLAGS]) == 0
    out, err = capsys.readouterr()
    assert out == printed(expected[1]) and f"Talk to {qwen3_folder}" in err


def test_chat_goes_on_after_a_question_too_long(qwen3_folder, expected, monkeypatch, capsys):
    code, out, err = talk(qwen3_folder, monkeypatch, capsys, "x" * 3000, "hello")
    assert code == 0 and "/reset begins anew" in err and out == printed(expected[1])


def test_interrupted_answer_does_not_end_the_chat(qwen3_folder, expected, monkeypatch, capsys):
    interrupt_at_step(monkeypatch, 3)
    code, out, _ = talk(qwen3_folder, monkeypatch, capsys, "hello", "/reset", "hello")
    assert code == 0 and out.endswith(printed(expected[1])) and len(out) > len(printed(expected[1]))


def test_thoughts_are_not_the_answer(capsys):
    class Thinker:
        def pieces(self, prompt, changes, summary):
            yield from (Thinking("so "), Thinking("be it"), Text("Ye"), Text("s"))

    terminal = Terminal(Thinker())
    terminal.print_answer("?", {})
    assert terminal.text_so_far == "Yes"
    assert capsys.readouterr() == ("Yes\n", "so be it\n\n")


def test_a_thinking_model(capsys):
    """A demo model that is said to think to the end; and one that cannot be told to."""
    flags = ("--max-tokens", "8", "--temperature", "0", "hello")
    assert main(["run", "demo", *flags]) == 0
    text = capsys.readouterr().out
    assert main(["run", "demo", "--reasoning-parser", "deepseek_r1", *flags]) == 0
    out, err = capsys.readouterr()
    assert out == "\n" and err.strip() == text.strip()
    assert main(["run", "demo", "--no-think", *flags]) != 0
    assert "enable_thinking" in capsys.readouterr().err
