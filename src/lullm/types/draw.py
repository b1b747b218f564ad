"""One token to draw, as plain data: all that a sampler needs of a request.

`DrawParams` stays the same for a sequence's life; `Draw` adds the facts of one step.
"""

import msgspec

from lullm.types.guided.params import Guide
from lullm.types.guided.rules import NO_RULES, TokenRules
from lullm.types.packed import PackedInts
from lullm.types.request import GenerateRequest


class ThinkingBudget(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Thoughts among output tokens, as in `ThinkingTokens`, and their most tokens; then they are ended."""

    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]
    begins_inside: bool
    num_tokens: int


class LogitEdits(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Changes of logits before a token is chosen: penalties, bias, allowed and forbidden tokens, a grammar, a budget.

    The meanings are those of `SamplingParams`. `end_token_ids` are the tokens that `min_tokens` forbids (end of
    sequence and stop tokens); `bad_words_ids` are the bad words as token sequences. `rules`: of the model's files.
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
    rules: TokenRules = NO_RULES

    @property
    def reads_tokens(self) -> bool:
        """Whether the change depends on the sequence's tokens, not only on their number."""
        return bool(self.guide or self.bad_words_ids or self.thinking or self.rules.timestamps or self.reads_prompt)

    @property
    def reads_prompt(self) -> bool:
        """Whether it also depends on the prompt's tokens: it has penalties."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


def has_guide_alone(edits: LogitEdits | None) -> bool:
    """Whether a grammar is the only restriction of a choice."""
    return edits is not None and edits.guide is not None and edits == LogitEdits(guide=edits.guide)


class DrawParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the tokens of one sequence are drawn.

    `seq_index` numbers the sequence within its request. `num_logprobs`: log-probabilities wanted besides the chosen
    token's; None: none at all. `edits` None: the model's logits are used unchanged.
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
        """Whether a draw depends on the sequence's tokens, so that it must carry them."""
        return self.edits is not None and self.edits.reads_tokens


class Draw(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token to draw from the logits of one row of a span.

    `row` counts from the span's first token. `output_len`: output tokens before the drawn one. The draw's randomness
    depends on (`params.seed`, `params.seq_index`, `output_len`) alone, not on the batch. `token_ids`: the tokens before
    the drawn one. They are all tokens if `params.edits.reads_prompt`, and the last `output_len` of them are output;
    only output tokens if `params.reads_tokens`; otherwise none.
    """

    seq_id: int
    row: int
    params: DrawParams
    output_len: int = 0
    token_ids: PackedInts = b""


def draw_params(request: GenerateRequest, seq_index: int) -> DrawParams:
    """The draw parameters of one of the request's sequences. Not for beams."""
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
        rules=request.rules,
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
