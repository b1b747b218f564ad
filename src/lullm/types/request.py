"""What a caller asks, and a request after validation: the only form in which work enters the engine's queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from lullm.types.guided.params import Guide
from lullm.types.pooling.params import Pooling
from lullm.types.reply.rules import CallRules, ReplyRules
from lullm.types.sampling_params import OutputKind, SamplingParams


class TextPrompt(TypedDict):
    """A prompt as a dict with its text. `split_special_tokens`: as in `Conversation`, and off by default.

    `cache_salt`: only prompts with the same salt share cached prefixes. `suffix`: the model fills in what stands
    between the prompt and it.
    """

    prompt: str
    split_special_tokens: NotRequired[bool | None]
    cache_salt: NotRequired[str | None]
    suffix: NotRequired[str | None]


class TokensPrompt(TypedDict):
    """A prompt as a dict with its token ids."""

    prompt_token_ids: Sequence[int]
    cache_salt: NotRequired[str | None]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that the model's chat template turns into a prompt.

    `options` go to `ChatTemplate.render`: `add_generation_prompt`, `tools`, and variables of the template's own.
    `split_special_tokens`: special tokens that messages and options spell are split into tokens of ordinary text, so
    that no user ends a turn; None: what the engine's option of that name says, by default yes. `cache_salt`: as in
    `TextPrompt`. `calls`: how the tools may be called; with choice 'none' the template does not get them. `template`:
    another one than the model's, as a text.
    """

    messages: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    split_special_tokens: bool | None = None
    calls: CallRules = CallRules()
    cache_salt: str | None = None
    template: str | None = None


@dataclass(frozen=True, slots=True)
class TextPair:
    """A query and a document, which a cross-encoder reads as one prompt. `instruction`: what counts as relevant."""

    query: str
    document: str
    instruction: str | None = None


Input = Prompt | Conversation | TextPair
"""Whatever an engine reads as a prompt."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Prompt ids within the vocabulary and the model length, resolved parameters.

    `seed` is the parameters' seed or one the engine drew; `priority`: lower goes first (policy 'priority').
    `arrival_time` in seconds of `time.monotonic()`. `end_token_ids`: the model's end-of-sequence tokens, none with
    `ignore_eos`. `bad_words_ids`: `bad_words` as the token sequences to forbid. `guide`: the grammar of
    `structured_outputs`. `pooling`: what is wanted of the
    prompt, instead of tokens behind it; then `params` are `NO_TOKENS`. `cache_salt`: cached prefixes are shared with
    requests of the same salt only. `reply`: how the answer to a conversation is read; None: it is text.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    arrival_time: float
    priority: int = 0
    end_token_ids: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    pooling: Pooling | None = None
    guide: Guide | None = None
    cache_salt: str = ""
    reply: ReplyRules | None = None


NO_TOKENS = SamplingParams(output_kind=OutputKind.FINAL_ONLY)
"""Parameters of a request that draws nothing: one sequence, one output."""
