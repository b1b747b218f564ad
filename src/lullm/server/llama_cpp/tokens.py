"""llama.cpp's form of POST /tokenize, whose path vLLM's has, too: its body has `content`."""

from typing import Any

from lullm.engine.client import EngineClient
from lullm.server.error import ApiError
from lullm.server.openai.schema import TokenizeBody, plain_prompt

_OF_CONTENT = ("add_special", "parse_special", "with_pieces")


async def llama_tokens(engine: EngineClient, body: TokenizeBody) -> dict[str, Any]:
    """The tokens of `content`, or each with its piece of text. Raises ApiError: it has fields of vLLM's form."""
    others = sorted(body.model_fields_set - {"model", "content", *_OF_CONTENT})
    if others:
        raise ApiError(400, f"{others[0]} does not go with content, which is llama.cpp's", param=others[0])
    # Special tokens act by default, whatever the engine's own default is: llama.cpp's clients count on it.
    prompt = plain_prompt(body.content or "", split_special_tokens=body.parse_special is False)
    token_ids = await engine.tokenize(prompt, add_special_tokens=body.add_special is True)
    if not body.with_pieces:
        return {"tokens": token_ids}
    return {"tokens": [{"id": token_id, "piece": _piece(engine, token_id)} for token_id in token_ids]}


def check_content(body: TokenizeBody) -> None:
    """Raises ApiError: a body without `content` has fields of llama.cpp's form."""
    for name in _OF_CONTENT:
        if getattr(body, name) is not None:
            raise ApiError(400, f"{name} needs content, which is llama.cpp's name of the text", param=name)


def _piece(engine: EngineClient, token_id: int) -> str | list[int]:
    """A token's text; its bytes if they are a part of a character."""
    tokenizer = engine.tokenizer
    if token_id in tokenizer.special_token_ids:
        return tokenizer.decode_token(token_id)
    piece = tokenizer.token_bytes.inner(token_id)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
