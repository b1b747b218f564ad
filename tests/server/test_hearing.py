"""Sounds in conversations over HTTP and on the terminal: the tokens of `LLM.chat`; and what is refused."""

import base64

import pytest
from kit.audio.checkpoint import sound
from kit.audio.file import wav
from kit.audio.hearing import write_qwen2_audio, write_voxtral

from lullm import LLM, SamplingParams
from lullm.cli.main import main
from lullm.config.engine import EngineConfig
from lullm.engine.async_llm_engine import AsyncLLMEngine

OPTIONS = {"dtype": "float32", "max_model_len": 160, "block_size": 8, "num_gpu_blocks_override": 80}
FLAGS = ["--dtype", "float32", "--max-model-len", "160", "--block-size", "8", "--num-gpu-blocks-override", "80"]
NUM_TOKENS = 6
FILE = wav(sound(2, 0.7), bits=32, is_float=True)
DATA = base64.b64encode(FILE).decode()
URL = f"data:audio/wav;base64,{DATA}"
PART = {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}


def chat(*parts, text="what fox?"):
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module", params=[write_qwen2_audio, write_voxtral], ids=["qwen2", "voxtral"])
def folder(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("model")).folder


@pytest.fixture(scope="module")
def expected(folder):
    """(the text of an answer, tokens of the prompt)."""
    with LLM(str(folder), **OPTIONS) as llm:
        [output] = llm.chat(chat(PART), SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS), use_tqdm=False)
        return output.outputs[0].text, output.prompt_token_ids


@pytest.fixture(scope="module")
def running(folder, start_for_module):
    config = EngineConfig(model=str(folder), served_model_name="ears", limit_mm_per_prompt='{"audio": 2}', **OPTIONS)
    return start_for_module(AsyncLLMEngine(config))


@pytest.mark.parametrize("stream", [False, True])
def test_openai(running, expected, stream):
    with running.openai() as client:
        answer = client.chat.completions.create(
            model="ears", messages=chat(PART), temperature=0, max_tokens=NUM_TOKENS, stream=stream
        )
        if stream:
            said = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        else:
            said = answer.choices[0].message.content
            assert answer.usage.prompt_tokens == len(expected[1])
        assert said == expected[0]


@pytest.mark.parametrize(
    "part",
    [
        PART,
        {"type": "audio_url", "audio_url": {"url": URL}},
        {"type": "audio_url", "audio_url": URL},
        {"type": "audio", "audio": URL},
        {"type": "audio", "url": URL},
        {"type": "audio", "audio_url": URL},
        {"type": "audio", "base64": DATA},
    ],
    ids=lambda part: "-".join(part),
)
def test_forms_of_a_sound(running, expected, part):
    with running.http() as http:
        answer = http.post("/tokenize", json={"model": "ears", "messages": chat(part)}).json()
        assert answer["tokens"] == expected[1]


def test_what_servers_say_of_the_model(running):
    with running.http() as http:
        assert http.get("/props").json()["modalities"] == {"vision": False, "audio": True}


BROKEN = {
    "not base64": ({"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,@@@"}}, "base64"),
    "cut in the header": ({"type": "audio", "base64": DATA[:60]}, "no samples"),
    "no wav": ({"type": "input_audio", "input_audio": {"data": base64.b64encode(b"hello").decode()}}, ""),
    "a picture": ({"type": "audio_url", "audio_url": {"url": "data:image/png;base64,AAAA"}}, "is no sound"),
    "network": ({"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}}, "not fetched"),
    "file": ({"type": "audio", "audio": "file:///etc/hostname"}, "allowed_local_media_path"),
    "path": ({"type": "audio", "path": "/etc/hostname"}, "path"),
    "nothing": ({"type": "audio"}, "has one of"),
    "empty": ({"type": "audio", "base64": base64.b64encode(wav(sound(0)[:0])).decode()}, "no samples"),
    "long": ({"type": "audio", "base64": base64.b64encode(wav(sound(0, 18.0))).decode()}, "the sound takes 18 s, more"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_sound_is_400(running, case):
    part, words = BROKEN[case]
    with running.http() as http:
        answer = http.post("/v1/chat/completions", json={"model": "ears", "messages": chat(part)})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert words in error["message"], error
        assert case == "no wav" or error["param"].startswith("messages"), error


def test_too_many(running):
    with running.http() as http:
        answer = http.post("/v1/chat/completions", json={"model": "ears", "messages": chat(PART, PART, PART)})
        assert answer.status_code == 400 and "at most 2 sounds" in answer.json()["error"]["message"]


def test_a_model_of_text_refuses(http):
    answer = http.post("/v1/chat/completions", json={"model": "scripted", "messages": chat(PART)})
    assert answer.status_code == 400 and "takes no sounds" in answer.text


def test_the_terminal(folder, running, expected, tmp_path, capsys):
    (tmp_path / "talk.wav").write_bytes(FILE)
    asked = ["what fox?", "--audio", str(tmp_path / "talk.wav"), "--temp", "0", "--max-tokens", str(NUM_TOKENS)]
    assert main(["run", "--model", str(folder), *FLAGS, *asked]) == 0
    assert capsys.readouterr().out.strip() == expected[0].strip()
    assert main(["run", "--url", running.url, *asked]) == 0
    assert capsys.readouterr().out.strip() == expected[0].strip()
    assert main(["run", "--url", running.url, *asked, "--language", "en"]) == 2
    assert "--language is for Whisper" in capsys.readouterr().err
    assert main(["run", "--url", running.url, *asked[1:]]) == 0  # the sound is the message
    assert capsys.readouterr().out


def transcribed(http, **fields):
    return http.post("/v1/audio/transcriptions", files={"file": FILE}, data={"max_completion_tokens": "6"} | fields)


def test_transcriptions(running, folder):
    """By the prompt that mistral-common makes; a model without its words is asked in conversations."""
    with running.http() as http:
        answer = transcribed(http, language="german")
        if "[TRANSCRIBE]" not in (folder / "tokenizer.json").read_text():
            assert (
                answer.status_code == 400 and "ask it about them in a conversation" in answer.json()["error"]["message"]
            )
            return
        with LLM(str(folder), **OPTIONS) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=6)
            for name, text in (("de", "lang:de"), ("", "")):
                prompt = f"<s>[INST][BEGIN_AUDIO][AUDIO][/INST]{text}[TRANSCRIBE]"
                asked = {"prompt": prompt, "multi_modal_data": {"audio": sound(2, 0.7)}}
                [output] = llm.generate(asked, params, use_tqdm=False)
                assert transcribed(http, language=name).json()["text"] == output.outputs[0].text.strip()
        assert answer.json()["usage"] == {"type": "duration", "seconds": 1}
        events = transcribed(http, stream="true").text
        assert "transcript.text.done" in events
        for fields, words in (
            ({"response_format": "srt"}, "no tokens of times"),
            ({"language": "klingon"}, "code of two letters"),
            ({"prompt": "Names: Anna"}, "leave prompt out"),
        ):
            refused = transcribed(http, **fields)
            assert refused.status_code == 400 and words in refused.text, refused.text
        refused = http.post("/v1/audio/translations", files={"file": FILE})
        assert refused.status_code == 400 and "translates in conversations" in refused.text
        refused = http.post("/v1/audio/transcriptions", files={"file": wav(sound(0, 17.0))})
        assert refused.status_code == 400 and "too long" in refused.text
