"""`lullm run --audio`: what a model hears in files on disk, here and on a server."""

import io
import json

import numpy as np
import pytest
from kit.audio.checkpoint import TIMED_IDS, sound, write_timed_whisper
from kit.audio.file import wav

from lullm import LLM, SamplingParams
from lullm.audio.windows import windows
from lullm.cli.main import main
from lullm.config.engine import EngineConfig
from lullm.engine.async_llm_engine import AsyncLLMEngine

OPTIONS = {"dtype": "float32", "max_model_len": 48, "block_size": 8, "num_gpu_blocks_override": 80}
FLAGS = ["--dtype", "float32", "--max-model-len", "48", "--block-size", "8", "--num-gpu-blocks-override", "80",
         "--max-tokens", "9"]  # fmt: skip
SHORT, LONG = sound(0, 0.8), sound(3, 2.3)
FIELDS = {"response_format": "verbose_json", "max_completion_tokens": "9", "seed": "3"}


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return str(write_timed_whisper(tmp_path_factory.mktemp("whisper"), 3, alignment_heads=[[0, 1], [1, 2]]).folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sounds")
    for name, samples in (("short.wav", SHORT), ("long.wav", LONG)):
        (folder / name).write_bytes(wav(samples, bits=32, is_float=True))
    return [str(folder / name) for name in ("short.wav", "long.wav")]


@pytest.fixture(scope="module")
def running(whisper, start_for_module):
    return start_for_module(AsyncLLMEngine(EngineConfig(model=whisper, served_model_name="ears", **OPTIONS)))


@pytest.fixture(scope="module")
def said(whisper):
    start = [TIMED_IDS[word] for word in ("startoftranscript", "de", "transcribe", "notimestamps")]
    with LLM(whisper, **OPTIONS) as llm:

        def text(samples):
            pieces = windows(samples, 16_000, 1.0)
            prompts = [{"prompt_token_ids": start, "multi_modal_data": {"audio": each}} for each in pieces]
            outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=9), use_tqdm=False)
            return "".join(output.outputs[0].text for output in outputs).strip()

        yield text(SHORT), text(LONG)


def test_texts(whisper, files, said, capsys):
    run = ["run", whisper, *FLAGS, "--language", "German"]
    assert main([*run, "--audio", files[1]]) == 0
    assert capsys.readouterr().out.strip() == said[1]
    assert main([*run, "--audio", files[0], "--audio", files[1], "--verbose"]) == 0
    both = capsys.readouterr()
    assert both.out.split("> ")[1:] == [f"{files[0]}\n{said[0]}\n\n", f"{files[1]}\n{said[1]}\n"]
    assert "new, first after" in both.err
    assert main([*run, "--audio", files[0], "--response-format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"text": said[0]}


def test_as_a_server_answers(whisper, files, running, capsys, monkeypatch):
    """The language that is heard, an earlier text, times; and the same over a URL."""
    with running.http() as http:
        for fields, flags in [
            ({}, []),
            ({"prompt": "hello there", "language": "fr"}, ["hello there", "--language", "fr"]),
            (
                {"timestamp_granularities[]": ["segment", "word"], "language": "en"},
                ["--word-times", "--language", "en"],
            ),
            ({"response_format": "srt", "translate": True}, ["--translate", "--response-format", "srt"]),
        ]:
            sent = FIELDS | fields
            path = "translations" if sent.pop("translate", False) else "transcriptions"
            with open(files[0], "rb") as file:
                answer = http.post(f"/v1/audio/{path}", files={"file": file}, data=sent)
            expected = answer.json() if sent["response_format"] == "verbose_json" else answer.text.strip()
            given = ["--seed", "3", "--audio", files[0]]
            given += [] if "--response-format" in flags else ["--response-format", "verbose_json"]
            monkeypatch.setattr("sys.stdin", io.StringIO(""))
            assert main(["run", "--model", whisper, *FLAGS, *flags, *given]) == 0
            here = capsys.readouterr().out.strip()
            assert main(["run", "--url", running.url, "--max-tokens", "9", *flags, *given]) == 0
            there = capsys.readouterr().out.strip()
            if sent["response_format"] == "verbose_json":
                here, there = json.loads(here), json.loads(there)
                assert there == expected and ("words" in expected) is ("--word-times" in flags)
                expected.pop("usage")
            assert here == expected


def test_what_is_refused(whisper, files, tmp_path, qwen3_folder, running, capsys):
    (tmp_path / "text.wav").write_text("hello")
    (tmp_path / "empty.wav").write_bytes(wav(np.zeros(0)))
    run = ["run", "--model", whisper, *FLAGS]
    timed = [*run, "--audio", files[0], "--word-times", "--response-format", "verbose_json"]
    for words, reason in [
        ([*run, "--audio", str(tmp_path / "none.wav")], "--audio: cannot read"),
        ([*run, "--audio", str(tmp_path / "text.wav")], "lullm: "),
        ([*run, "--audio", str(tmp_path / "empty.wav")], "no samples"),
        ([*run, "--audio", files[0], "--language", "zz"], "not one of de, en, fr"),
        ([*run, "--audio", files[0], "one", "two"], "takes one prompt"),
        ([*run, "--audio", files[0], "--raw"], "--raw does not go with --audio"),
        ([*run, "--audio", files[0], "--stop", "x"], "--stop does not go with --audio"),
        ([*run, "--audio", files[0], "--word-times"], "--word-times needs --response-format verbose_json"),
        ([*timed, "--translate"], "words of a translation"),
        ([*run, "hello", "--word-times"], "--word-times is for a sound"),
        ([*run, "hello", "--translate"], "--translate is for a sound"),
        ([*run, "hello", "--response-format", "srt"], "--response-format is for a sound"),
        (["run", "--model", str(qwen3_folder), "--audio", files[0]], "does not hear"),
        (["run", "--url", running.url, "--audio", files[0], "--language", "zz"], "not one of de, en, fr"),
    ]:
        assert main(words) == 2, words
        assert reason in capsys.readouterr().err
