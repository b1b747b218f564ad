"""Pictures over HTTP, in every dialect: the tokens of `LLM.chat`; and what is refused."""

import base64
import io

import anthropic
import ollama
import openai
import pytest
from kit.file_server import file_server
from kit.vision.checkpoint import picture, write_idefics3, write_pixtral, write_qwen_vl
from kit.vision.mmproj_files import write_pair
from PIL import Image

from lullm import LLM, SamplingParams
from lullm.config.engine import EngineConfig
from lullm.engine.async_llm_engine import AsyncLLMEngine

OPTIONS = {"dtype": "float32", "max_model_len": 512, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
PICTURE = picture(61, 40)
NUM_TOKENS = 6


def png(image=PICTURE, kind="PNG"):
    file = io.BytesIO()
    image.save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def url(data=None):
    return f"data:image/png;base64,{png() if data is None else data}"


def write_files(folder):
    """A GGUF model, and its mmproj file."""
    return write_pair(folder / "files", write_pixtral(folder / "folder", 2))


SHAPES = {
    # a picture takes a grid of tiles, or as many rows as it has pixels
    "idefics3": (write_idefics3, {"do_image_splitting": False}),
    "qwen": (write_qwen_vl, {"max_pixels": 1000}),
    "mmproj": (write_files, {"size": {"longest_edge": 24}}),
}


@pytest.fixture(scope="module", params=SHAPES)
def shape(request):
    return request.param


@pytest.fixture(scope="module")
def folder(shape, tmp_path_factory):
    written = SHAPES[shape][0](tmp_path_factory.mktemp("model"))
    return written.model if shape == "mmproj" else written.folder


@pytest.fixture(scope="module")
def expected(folder):
    """(the text of an answer, tokens of the prompt)."""
    with LLM(str(folder), **OPTIONS) as llm:
        part = {"type": "image_url", "image_url": {"url": url()}}
        asked = [{"role": "user", "content": [part, {"type": "text", "text": "what fox?"}]}]
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
        [output] = llm.chat(asked, params, use_tqdm=False)
        return output.outputs[0].text, len(output.prompt_token_ids)


@pytest.fixture(scope="module")
def running(folder, start_for_module):
    options = OPTIONS | {"limit_mm_per_prompt": '{"image": 2}', "allowed_media_domains": ("127.0.0.1",)}
    config = EngineConfig(model=str(folder), served_model_name="eyes", **options)
    return start_for_module(AsyncLLMEngine(config))


def chat(*pictures, text="what fox?"):
    parts = [{"type": "image_url", "image_url": {"url": one, "detail": "auto"}} for one in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@pytest.mark.parametrize("stream", [False, True])
def test_openai(running, expected, stream):
    with running.openai() as client:
        answer = client.chat.completions.create(
            model="eyes", messages=chat(url()), temperature=0, max_tokens=NUM_TOKENS, stream=stream
        )
        if stream:
            said = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        else:
            said = answer.choices[0].message.content
            assert answer.usage.prompt_tokens == expected[1]
        assert said == expected[0]


def test_pictures_of_other_servers(running, expected, tmp_path):
    """A client of each kind that names an address."""
    (tmp_path / "a.png").write_bytes(base64.b64decode(png()))
    with file_server(tmp_path) as address, running.http() as http:
        url, words = f"{address}/a.png", {"type": "text", "text": "what fox?"}
        asked = {"model": "eyes", "messages": chat(url), "temperature": 0, "max_tokens": NUM_TOKENS}
        answer = http.post("/v1/chat/completions", json=asked).json()
        assert answer["choices"][0]["message"]["content"] == expected[0]
        parts = [{"type": "image", "source": {"type": "url", "url": url}}, words]
        answer = http.post("/v1/messages", json=asked | {"messages": [{"role": "user", "content": parts}]}).json()
        assert answer["content"][0]["text"] == expected[0]
        parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "what fox?"}]
        asked = {"model": "eyes", "input": [{"role": "user", "content": parts}], "temperature": 0}
        answer = http.post("/v1/responses", json=asked | {"max_output_tokens": NUM_TOKENS}).json()
        assert answer["output"][0]["content"][0]["text"] == expected[0]
        answer = http.post("/v1/chat/completions", json={"model": "eyes", "messages": chat(f"{address}/none.png")})
        assert answer.status_code == 400 and "answers 404" in answer.json()["error"]["message"]


def test_responses(running, expected):
    parts = [{"type": "input_image", "image_url": url(), "detail": "auto"}, {"type": "input_text", "text": "what fox?"}]
    with running.openai() as client:
        answer = client.responses.create(
            model="eyes", input=[{"role": "user", "content": parts}], temperature=0, max_output_tokens=NUM_TOKENS
        )
    assert answer.output_text == expected[0] and answer.usage.input_tokens == expected[1]


def test_anthropic(running, expected):
    source = {"type": "base64", "media_type": "image/png", "data": png()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "what fox?"}]
    with anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0) as client:
        asked = {"model": "eyes", "messages": [{"role": "user", "content": content}]}
        answer = client.messages.create(**asked, max_tokens=NUM_TOKENS, extra_body={"temperature": 0})
        assert answer.content[0].text == expected[0]
        assert client.messages.count_tokens(**asked).input_tokens == expected[1]


def test_ollama(running, expected):
    client, options = ollama.Client(running.url), {"temperature": 0, "num_predict": NUM_TOKENS}
    asked = {"role": "user", "content": "what fox?", "images": [png()]}
    assert client.chat("eyes", [asked], options=options).message.content == expected[0]
    assert client.generate("eyes", "what fox?", images=[png()], options=options).response == expected[0]
    assert "vision" in client.show("eyes").capabilities
    client._client.close()


def test_what_servers_say_of_the_model(running):
    with running.http() as http:
        assert http.get("/props").json()["modalities"]["vision"] is True
        answer = http.post("/tokenize", json={"messages": chat(url())}).json()
        assert answer["count"] == len(answer["tokens"]) > 16


def test_settings_of_a_request(running, folder, shape):
    settings = SHAPES[shape][1]
    with LLM(str(folder), **OPTIONS, mm_processor_kwargs=settings) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
        [output] = llm.chat(chat(url()), params, use_tqdm=False)
    with running.http() as http:
        body = {"model": "eyes", "messages": chat(url()), "mm_processor_kwargs": settings}
        answer = http.post("/v1/chat/completions", json=body | {"temperature": 0, "max_tokens": NUM_TOKENS}).json()
        assert answer["choices"][0]["message"]["content"] == output.outputs[0].text
        assert answer["usage"]["prompt_tokens"] == len(output.prompt_token_ids)
        assert http.post("/tokenize", json=body).json()["tokens"] == output.prompt_token_ids
        for wrong in ({"size": {"longest_edge": 10**9}}, {"max_pixels": -3}, {"size": [[]]}, {"image_mean": 0}):
            answer = http.post("/v1/chat/completions", json=body | {"mm_processor_kwargs": wrong})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "mm_processor_kwargs", wrong


def bomb():
    """A small file of many pixels."""
    return png(Image.new("1", (9000, 9000)))


BROKEN = {
    "not base64": (url("@@@"), "base64"),
    "no picture": (url(base64.b64encode(b"hello").decode()), "is not PNG"),
    "cut": (url(png()[:-400]), "cannot be decoded"),
    "bomb": (url(bomb()), "pixels"),
    "another format": (url(png(kind="PPM")), "is not PNG"),
    "network": ("https://example.com/a.png", "not fetched"),
    "file": ("file:///etc/hostname", "allowed_local_media_path"),
    "text": ("data:text/plain,hello", "no picture"),
    "nothing": ("", "URL"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_picture_is_400(running, case):
    address, words = BROKEN[case]
    with running.http() as http:
        answer = http.post("/v1/chat/completions", json={"model": "eyes", "messages": chat(address)})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert words in error["message"] and error["param"] == "messages"


def test_too_many(running):
    with running.http() as http:
        answer = http.post("/v1/chat/completions", json={"model": "eyes", "messages": chat(url(), url(), url())})
        assert answer.status_code == 400 and "at most 2 pictures" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": chat(url())}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url()}]}]}),
        (
            "/v1/messages",
            {
                "max_tokens": 4,
                "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url()}}]}],
            },
        ),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": [png()]}]}),
    ],
)
def test_a_model_of_text_refuses(http, path, body):
    answer = http.post(path, json={"model": "scripted"} | body)
    assert answer.status_code == 400 and "takes text only" in answer.text


def test_where_pictures_do_not_belong(running):
    source = {"type": "base64", "media_type": "image/png", "data": png()}
    said = {"role": "assistant", "content": [{"type": "image", "source": source}]}
    with running.http() as http:
        asked = {"model": "eyes", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}, said]}
        answer = http.post("/v1/messages", json=asked)
        assert answer.status_code == 400 and "belongs to a message of the user" in answer.text
        answer = http.post("/api/generate", json={"model": "eyes", "prompt": "x", "raw": True, "images": [png()]})
        assert answer.status_code == 400 and "chat template" in answer.text
        file = {"type": "input_image", "file_id": "f", "image_url": url()}
        answer = http.post("/v1/responses", json={"model": "eyes", "input": [{"role": "user", "content": [file]}]})
        assert answer.status_code == 400 and "file_id" in answer.text
        said = {"role": "assistant", "content": [{"type": "input_image", "image_url": url()}]}
        answer = http.post("/v1/responses", json={"model": "eyes", "input": [said]})
        assert answer.status_code == 400 and "belongs to a message of the user" in answer.text


def test_videos(running, shape):
    """A moving GIF, which needs Pillow alone, and the URLs of its frames."""
    frames, file = [picture(30, 22, seed) for seed in range(4)], io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=500)
    video = f"data:video/gif;base64,{base64.b64encode(file.getvalue()).decode()}"
    parts = [
        {"type": "video_url", "video_url": {"url": video}},
        {"type": "video", "video": [url(png(frame)) for frame in frames]},
    ]
    with running.openai() as client:
        for part in parts:
            asked = {"model": "eyes", "messages": [{"role": "user", "content": [part]}], "max_tokens": 4}
            if shape == "qwen":
                answer = client.chat.completions.create(**asked)
                assert answer.usage.prompt_tokens > 2 * 12 and answer.choices[0].finish_reason
                continue
            with pytest.raises(openai.BadRequestError, match="this model takes no videos: "):
                client.chat.completions.create(**asked)
