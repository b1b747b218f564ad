"""Sounds over HTTP, as OpenAI's clients send them: the text of `LLM.generate`; and what is refused."""

import random
import warnings

import httpx
import numpy as np
import pytest
from kit.audio.checkpoint import SPECIAL, sound, write_whisper
from kit.audio.file import wav

from lullm import LLM, SamplingParams
from lullm.audio.windows import windows
from lullm.config.engine import EngineConfig
from lullm.engine.async_llm_engine import AsyncLLMEngine
from lullm.server.audio.multipart import form_parts
from lullm.server.audio.text_stream import TextStream
from lullm.server.error import ApiError

OPTIONS = {"dtype": "float32", "max_model_len": 48, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
IDS = {word.strip("<|>"): number for number, word in enumerate(SPECIAL)}
SHORT, LONG = sound(0, 0.8), sound(3, 2.3)
START = [IDS["startoftranscript"], IDS["en"], IDS["transcribe"], IDS["notimestamps"]]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def text_of(whisper):
    """What the model says of sounds, one after the other, behind a prompt."""
    with LLM(str(whisper.folder), **OPTIONS) as llm:

        def said(sounds, ids=START, **params):
            prompts = [{"prompt_token_ids": ids, "multi_modal_data": {"audio": each}} for each in sounds]
            params = SamplingParams(**{"temperature": 0.0, "max_tokens": 48 - len(ids)} | params)
            outputs = llm.generate(prompts, params, use_tqdm=False)
            return "".join(output.outputs[0].text for output in outputs).strip()

        yield said


@pytest.fixture(scope="module")
def running(whisper, start_for_module):
    config = EngineConfig(model=str(whisper.folder), served_model_name="ears", **OPTIONS)
    return start_for_module(AsyncLLMEngine(config))


def file_of(samples, bits=32, is_float=True, **options):
    return ("sound.wav", wav(samples, bits=bits, is_float=is_float, **options))


def post(running, path="transcriptions", files=None, **fields):
    with running.http() as http:
        return http.post(f"/v1/audio/{path}", files={"file": file_of(SHORT)} if files is None else files, data=fields)


def test_openais_client(running, text_of):
    with running.openai() as client:
        answer = client.audio.transcriptions.create(model="ears", file=file_of(SHORT), language="en")
        assert answer.text == text_of([SHORT]) and answer.usage.seconds == 1
        plain = client.audio.transcriptions.create(
            model="ears", file=file_of(SHORT), language="en", response_format="text", prompt="hello world"
        )
        earlier = [IDS["startofprev"], *client_ids(running, " hello world")]
        assert plain.strip() == text_of([SHORT], [*earlier, *START])
        with warnings.catch_warnings(action="ignore"):  # theirs: they call it deprecated
            other = client.audio.translations.create(model="ears", file=file_of(SHORT), extra_body={"language": "de"})
        assert other.text == text_of([SHORT], [1, IDS["de"], IDS["translate"], IDS["notimestamps"]])


def client_ids(running, text):
    with running.http() as http:
        return http.post("/tokenize", json={"prompt": text}).json()["tokens"]


def test_a_language_that_is_not_named_is_heard(running, text_of, whisper):
    row = whisper.continued(SHORT, [1], 1, tuple(set(range(320)) - {IDS["en"], IDS["de"]}))[0]
    answer = post(running, response_format="text")
    assert answer.text == text_of([SHORT], [1, *row, *START[2:]]) + "\n"
    assert answer.headers["content-type"].startswith("text/plain")


def test_a_long_sound_is_heard_in_pieces(running, text_of):
    pieces = windows(LONG, 16_000, 1.0)
    assert len(pieces) == 3
    answer = post(running, files={"file": file_of(LONG)}, language="en")
    assert answer.json() == {"text": text_of(pieces), "usage": {"type": "duration", "seconds": 3.0}}


def test_a_stream_tells_pieces_in_their_order(running, text_of):
    with running.openai() as client:
        for heard, pieces in ((SHORT, [SHORT]), (LONG, windows(LONG, 16_000, 1.0))):
            events = list(
                client.audio.transcriptions.create(model="ears", file=file_of(heard), language="en", stream=True)
            )
            assert {each.type for each in events[:-1]} == {"transcript.text.delta"} and len(events) > 5
            expected = text_of(pieces)
            assert events[-1].type == "transcript.text.done" and events[-1].text == expected
            assert "".join(each.delta for each in events[:-1]).strip() == expected


def test_a_failure_within_a_stream():
    assert b'"code":"engine_failed"' in TextStream(1).failure(ApiError(500, "gone", code="engine_failed"))


def test_fields_of_a_draw(running, text_of):
    fields = {"temperature": "0.7", "seed": "5", "max_completion_tokens": "6", "top_p": "0.9", "language": "en"}
    params = {"temperature": 0.7, "seed": 5, "max_tokens": 6, "top_p": 0.9}
    assert post(running, **fields).json()["text"] == text_of([SHORT], **params)


def test_stereo_of_another_rate(running):
    both = np.stack([sound(0, 0.8, 44_100)] * 2, axis=1)
    answer = post(running, files={"file": file_of(both, 16, False, rate=44_100)}, language="en")
    assert answer.status_code == 200 and answer.json()["text"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": "xml"}, "response_format", "Input should be"),
        ({"language": "zz"}, "language", "not one of de, en"),
        ({"temperature": "warm"}, "temperature", "number"),
        ({"temperature": "-1"}, "temperature", "temperature"),
        ({"max_completion_tokens": "0"}, "max_completion_tokens", "greater than or equal to 1"),
        ({"include[]": "logprobs"}, "include", "not supported"),
        ({"files": {"other": ("a", b"b")}}, "file", "required"),
        ({"files": {"file": ("a.wav", b"RIFF0000WAVE")}}, "file", "damaged"),
        ({"files": {"file": ("a.wav", b"")}}, "file", "no WAV file"),
        ({"files": {"file": file_of(np.zeros(0))}}, "file", "no samples"),
        ({"files": {"file": file_of(np.full(9, np.nan))}}, "file", "not finite"),
        ({"files": {"file": file_of(np.zeros(3601 * 2), rate=2)}}, "file", "more than 3600"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(running, fields, param, words, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    answer = post(running, **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and words in error["message"], error


def test_unknown_fields_are_named(running):
    answer = post(running, colour="red", language="en")
    assert answer.status_code == 200 and answer.headers["x-lullm-ignored"] == "colour"


def test_an_unknown_model_and_other_bodies(running):
    assert post(running, model="eyes").status_code == 404
    with running.http() as http:
        for content, kind in [
            (b"{}", "application/json"),
            (b"", "multipart/form-data; boundary=x"),
            (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x"),
            (b"--x--", "multipart/form-data"),
        ]:
            answer = http.post("/v1/audio/transcriptions", content=content, headers={"Content-Type": kind})
            assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_form"
        # The model hears, and answers no text alone.
        answer = http.post("/v1/completions", json={"model": "ears", "prompt": "hello"})
        assert answer.status_code == 400 and "no sound" in answer.json()["error"]["message"]


def test_a_model_of_text_does_not_hear(server):
    answer = post(server)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "no_sound" and error["param"] == "model"


def test_forms_as_clients_write_them():
    chance = random.Random(1)
    for _ in range(100):
        values = {f"f{n}": chance.randbytes(chance.randrange(200)) for n in range(chance.randrange(1, 5))}
        names = {name: (None if chance.random() < 0.5 else f'a "{name}" ü.wav') for name in values}
        files = {name: (names[name], value) for name, value in values.items()}
        request = httpx.Request("POST", "http://x", files=files)
        parts = form_parts(request.headers["content-type"], request.read())
        assert [(part.name, part.value) for part in parts] == list(values.items())
        assert [part.filename is None for part in parts] == [name is None for name in names.values()]


def test_broken_forms_raise_nothing_else():
    chance = random.Random(2)
    request = httpx.Request("POST", "http://x", files={"a": ("b.wav", bytes(40)), "c": (None, b"d")})
    body, kind = request.read(), request.headers["content-type"]
    for _ in range(500):
        broken = bytearray(body[: chance.randrange(len(body))] if chance.random() < 0.5 else body)
        for _ in range(chance.randrange(4)):
            if broken:
                broken[chance.randrange(len(broken))] = chance.randrange(256)
        try:
            form_parts(kind, bytes(broken))
        except ApiError as error:
            assert error.status == 400
