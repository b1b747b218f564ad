"""A conversation of several turns. Each prompt begins with the last one, whose keys and values are still cached."""

import asyncio
import sys

from lullm import AsyncLLMEngine, EngineConfig, SamplingParams
from lullm.types.request import Conversation
from lullm.types.sampling_params import OutputKind

QUESTIONS = ["What is 17 + 25?", "What is the capital of France?", "Tell me a short story about a dog."]


async def talk(engine: AsyncLLMEngine) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, output_kind=OutputKind.DELTA)
    messages: list[dict[str, str]] = []
    for number, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": question})
        print(f"> {question}")
        answer = ""
        async for output in engine.generate(Conversation(messages), params, f"turn-{number}"):
            piece = output.outputs[0].text
            answer += piece
            print(piece, end="", flush=True)
        print(f"\n  ({output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens were cached)")
        messages.append({"role": "assistant", "content": answer})


async def main() -> None:
    engine = AsyncLLMEngine(EngineConfig(model=sys.argv[1] if len(sys.argv) > 1 else "demo"))
    try:
        await talk(engine)
    finally:
        await engine.shutdown()


asyncio.run(main())
