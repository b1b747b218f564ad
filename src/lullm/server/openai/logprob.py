"""Log-probabilities in the two forms OpenAI gives them: parallel lists (completions) and records (chat)."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import Logprob, PositionLogprobs

IMPOSSIBLE = -9999.0
"""In place of minus infinity, which JSON does not have."""


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else IMPOSSIBLE


def _text(tokenizer: Tokenizer, token_id: int, entry: Logprob) -> str:
    return entry.decoded_token if entry.decoded_token is not None else tokenizer.decode_token(token_id)


def _name(token_id: int, text: str, as_ids: bool) -> str:
    """How a token is named: its text, which several may share, or vLLM's form of its id."""
    return f"token_id:{token_id}" if as_ids else text


def best_tokens(position: PositionLogprobs, num: int) -> list[tuple[int, Logprob]]:
    """The `num` most likely tokens, best first."""
    return sorted(position.items(), key=lambda item: item[1].rank)[:num]


def completion_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    positions: Iterable[PositionLogprobs | None],
    num_top: int,
    offset: int,
    as_ids: bool = False,
) -> tuple[dict[str, Any], int]:
    """The completions form of `positions`, one per token, and the number of characters before the next token.

    `offset`: characters before the first token; `as_ids`: tokens are named by their ids, and offsets stay those of the
    text. A position without an entry (the first token of an echoed prompt) has null for its numbers.
    """
    tokens: list[str] = []
    numbers: list[float | None] = []
    top: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for token_id, position in zip(token_ids, positions, strict=True):
        if position is None:
            text = tokenizer.decode_token(token_id)
            numbers.append(None)
            top.append(None)
        else:
            text = _text(tokenizer, token_id, position[token_id])
            numbers.append(_finite(position[token_id].logprob))
            best = best_tokens(position, num_top)
            top.append({_name(i, _text(tokenizer, i, entry), as_ids): _finite(entry.logprob) for i, entry in best})
        tokens.append(_name(token_id, text, as_ids))
        offsets.append(offset)
        offset += len(text)
    return {"tokens": tokens, "token_logprobs": numbers, "top_logprobs": top, "text_offset": offsets}, offset


def chat_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    positions: Sequence[PositionLogprobs],
    num_top: int,
    as_ids: bool = False,
) -> dict[str, Any]:
    """The chat form of `positions`, one per token, with the `num_top` best of each. `as_ids`: named by their ids."""

    def record(token_id: int, entry: Logprob) -> dict[str, Any]:
        text = _text(tokenizer, token_id, entry)
        return {
            "token": _name(token_id, text, as_ids),
            "logprob": _finite(entry.logprob),
            "bytes": list(text.encode("utf-8")),
        }

    content = [
        record(token_id, position[token_id])
        | {"top_logprobs": [record(other, entry) for other, entry in best_tokens(position, num_top)]}
        for token_id, position in zip(token_ids, positions, strict=True)
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(positions: Sequence[PositionLogprobs | None] | None) -> list[dict[str, Any] | None] | None:
    """vLLM's form of a prompt's log-probabilities: token id -> its entry; null for the first token."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            str(token_id): {
                "logprob": _finite(entry.logprob),
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token_id, entry in position.items()
        }
        for position in positions
    ]
