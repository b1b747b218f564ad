"""Images of the texts of a request's sequences. States of detokenizers and of stop strings follow from the tokens."""

import msgspec


class TextImage(msgspec.Struct, frozen=True, array_like=True):
    """A `SequenceText`. `logprobs`: of tokens that no delta has sent yet (`LogprobRows.to_bytes`)."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: tuple[bytes, bytes, bytes, bytes]
    cumulative_logprob: float
    finish_reason: str | None
    stop_reason: int | str | None
    num_sent_chars: int
    num_sent_tokens: int
    is_finish_sent: bool


class RequestTextImage(msgspec.Struct, frozen=True, array_like=True):
    """A `RequestText`."""

    texts: list[TextImage]
    is_prompt_sent: bool
