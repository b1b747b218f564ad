"""One token to draw, as plain data: what a sampler needs, and nothing of the request that it comes from.

`DrawParams` stays the same for a sequence's life; `Draw` adds what differs by step.
"""

import msgspec

from lullm.types.guided.params import Guide
from lullm.types.packed import PackedInts
from lullm.types.request import GenerateRequest


class ThinkingBudget(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Thoughts among output tokens, as in `ThinkingTokens`, and how many tokens they may have: then they are ended."""

    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]
    begins_inside: bool
    num_tokens: int


class LogitEdits(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What changes logits before a token is chosen: penalties, bias, allowed and forbidden tokens, a grammar, a budget.

    The meanings are those of `SamplingParams`. `end_token_ids` are the tokens that `min_tokens` forbids (end of
    sequence and stop tokens); `bad_words_ids` are the bad words as token sequences.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    end_token_ids: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    guide: Guide | None = None
    thinking: ThinkingBudget | None = None

    @property
    def reads_tokens(self) -> bool:
        """Whether the change depends on which tokens the sequence holds, not only on how many."""
        return bool(self.guide or self.bad_words_ids or self.thinking or self.reads_prompt)

    @property
    def reads_prompt(self) -> bool:
        """Whether it depends on those of the prompt, too: it has penalties."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


def has_guide_alone(edits: LogitEdits | None) -> bool:
    """Whether a grammar is all that restricts a choice."""
    return edits is not None and edits.guide is not None and edits == LogitEdits(guide=edits.guide)


class DrawParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the tokens of one sequence are drawn.

    `seq_index` numbers the sequence within its request. `num_logprobs`: log-probabilities wanted besides the chosen
    token's; None: none at all. `edits` None: the logits are used as the model gave them.
    """

    seed: int = 0
    seq_index: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    num_logprobs: int | None = None
    edits: LogitEdits | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken every time."""
        return self.temperature == 0.0

    @property
    def reads_tokens(self) -> bool:
        """Whether a draw depends on which tokens the sequence holds, so that it must carry them."""
        return self.edits is not None and self.edits.reads_tokens


class Draw(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token to draw from the logits of one row of a span.

    `row` counts from the span's first token. `output_len`: output tokens that stand before the drawn one. The
    randomness of the draw is a function of (`params.seed`, `params.seq_index`, `output_len`) alone, so that it does
    not depend on the batch. `token_ids`: the tokens before the drawn one: all if `params.edits.reads_prompt`, of which
    the last `output_len` are output; those alone if `params.reads_tokens`; else none.
    """

    seq_id: int
    row: int
    params: DrawParams
    output_len: int = 0
    token_ids: PackedInts = b""


def draw_params(request: GenerateRequest, seq_index: int) -> DrawParams:
    """How the tokens of one of the request's sequences are drawn. Not for beams."""
    params = request.params
    edits = LogitEdits(
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        min_tokens=params.min_tokens,
        end_token_ids=request.end_token_ids + tuple(params.stop_token_ids or ()) if params.min_tokens else (),
        bad_words_ids=request.bad_words_ids,
        logit_bias=params.logit_bias or None,
        allowed_token_ids=None if params.allowed_token_ids is None else tuple(params.allowed_token_ids),
        guide=request.guide,
        thinking=_thinking_budget(request),
    )
    return DrawParams(
        seed=request.seed,
        seq_index=seq_index,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        num_logprobs=(params.logprobs or 0) if params.needs_logprobs else None,
        edits=None if edits == _NO_EDITS else edits,
    )


def _thinking_budget(request: GenerateRequest) -> ThinkingBudget | None:
    num_tokens = request.params.thinking_token_budget
    thinking = request.reply.thinking if request.reply else None
    if num_tokens is None or thinking is None:
        return None
    return ThinkingBudget(thinking.open_ids, thinking.close_ids, thinking.begins_inside, num_tokens)


_NO_EDITS = LogitEdits()
