"""From wire prompts and messages to token ids, without holding up the event loop for long texts."""

import asyncio
from dataclasses import dataclass
from typing import Any

from lullm.engine.protocol import EngineClient
from lullm.server.error import ApiError
from lullm.server.schema import ChatMessage

INLINE_CHARS = 4096
"""Texts up to this long are tokenized where they stand (well under a millisecond), longer ones in a thread."""


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """One prompt: its ids, and its text where the client sent one."""

    token_ids: list[int]
    text: str | None = None


async def tokenize(engine: EngineClient, text: str, add_special_tokens: bool = True) -> list[int]:
    """Ids of `text`."""
    if len(text) <= INLINE_CHARS:
        return engine.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(engine.tokenizer.encode, text, add_special_tokens=add_special_tokens)


async def detokenize(engine: EngineClient, token_ids: list[int], skip_special_tokens: bool = False) -> str:
    """Text of `token_ids`, which must be in the vocabulary."""
    if len(token_ids) <= INLINE_CHARS:
        return engine.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
    return await asyncio.to_thread(engine.tokenizer.decode, token_ids, skip_special_tokens=skip_special_tokens)


async def tokenize_prompts(engine: EngineClient, prompt: Any) -> list[TokenizedPrompt]:
    """The prompts of a completion body (text, texts, ids or lists of ids), each of a length the model can take.

    Raises:
        ApiError: 400, a prompt is empty, too long, or has an id outside the vocabulary.
    """
    items = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    prompts = []
    for item in items:
        if isinstance(item, str):
            prompts.append(TokenizedPrompt(await tokenize(engine, item), item))
        else:
            check_token_ids(engine, item, "prompt")
            prompts.append(TokenizedPrompt(item))
        check_len(engine, prompts[-1].token_ids, "prompt")
    return prompts


async def tokenize_messages(
    engine: EngineClient, messages: list[ChatMessage], add_generation_prompt: bool = True
) -> TokenizedPrompt:
    """Messages through the model's chat template, which writes the special tokens itself.

    Raises:
        ApiError: 400, no messages, or the model has no chat template.
        InvalidRequestError: the template refuses the messages.
    """
    template = engine.tokenizer.chat_template
    if template is None:
        raise ApiError(
            400,
            "this model has no chat template; use /v1/completions",
            param="messages",
            code="no_chat_template",
        )
    if not messages:
        raise ApiError(400, "messages must not be empty", param="messages")
    turns = [message.for_template() for message in messages]
    if sum(len(turn["content"]) for turn in turns) <= INLINE_CHARS:
        text = template.render(turns, add_generation_prompt=add_generation_prompt)
    else:
        text = await asyncio.to_thread(template.render, turns, add_generation_prompt=add_generation_prompt)
    return TokenizedPrompt(await tokenize(engine, text, add_special_tokens=False), text)


def check_token_ids(engine: EngineClient, token_ids: list[int], param: str) -> None:
    """Raises ApiError 400 if an id is outside the vocabulary."""
    vocab_size = engine.model_config.vocab_size
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        raise ApiError(400, f"{param}: token ids must be between 0 and {vocab_size - 1}", param=param)


def check_len(engine: EngineClient, token_ids: list[int], param: str) -> None:
    """Raises ApiError 400 if a prompt is empty or leaves no room for one new token."""
    if not token_ids:
        raise ApiError(400, f"{param} must have at least one token", param=param)
    limit = engine.config.max_model_len
    if limit is not None and len(token_ids) >= limit:
        raise ApiError(
            400,
            f"the prompt has {len(token_ids)} tokens; the model's length is {limit} for prompt and answer together",
            param=param,
            code="context_length_exceeded",
        )
