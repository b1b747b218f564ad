"""The bundled model behind the server, with the options of a bare `lullm serve`."""

from lullm import AsyncLLMEngine, EngineConfig


def test_chat_and_completion(start):
    server = start(AsyncLLMEngine(EngineConfig()))
    with server.openai() as client:
        (model,) = client.models.list().data
        assert model.id == "demo"
        ask = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 30}
        answer = client.chat.completions.create(**ask).choices[0]
        assert answer.message.content.strip() and answer.finish_reason in ("stop", "length")
        chunks = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**ask, stream=True)]
        assert "".join(chunks) == answer.message.content and len(chunks) > 3
        story = client.completions.create(model="demo", prompt="Once upon", max_tokens=30, temperature=0)
        assert story.usage.completion_tokens > 0 and story.choices[0].text.strip()
