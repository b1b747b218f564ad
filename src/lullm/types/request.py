"""A caller's prompt and request, and the request after validation: the only form in which work enters the queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from lullm.types.guided.params import Guide
from lullm.types.guided.rules import NO_RULES, TokenRules
from lullm.types.lora.prompt_adapter import PromptAdapterRequest
from lullm.types.lora.request import LoRARequest
from lullm.types.pooling.params import Pooling, PoolingParams
from lullm.types.reply.rules import CallRules, ReplyRules
from lullm.types.sampling_params import OutputKind, SamplingParams
from lullm.types.vision.tile import TilePlace
from lullm.units import round_up


class TextPrompt(TypedDict):
    """A prompt as a dict with its text. `split_special_tokens`: as in `Conversation`, and off by default.

    `add_special_tokens`: whether the tokenizer puts its special tokens around the text, by default yes; False is for a
    text that spells them, as a rendered chat template does.

    `cache_salt`: only prompts with the same salt share cached prefixes. `suffix`: the model writes the text between the
    prompt and the suffix. `multi_modal_data`: `{"image": picture}` or a list of pictures (PIL images or arrays), one
    for each place that the text has for one, in order. `mm_processor_kwargs`: other values for keys of
    preprocessor_config.json, which may make fewer tiles of these pictures, and smaller ones, than the engine's.

    `{"video": frames}` is a video: an array of bytes `[F, H, W, 3]`, a list of pictures, or a pair of one of these and
    a dict with `fps`, `frames_indices` and `total_num_frames`; several are in a list.

    For a model that hears, `multi_modal_data` is `{"audio": (samples, sampling rate)}`, or has a list of such pairs.
    """

    prompt: str
    multi_modal_data: NotRequired[Mapping[str, Any] | None]
    mm_processor_kwargs: NotRequired[Mapping[str, Any] | None]
    split_special_tokens: NotRequired[bool | None]
    add_special_tokens: NotRequired[bool | None]
    cache_salt: NotRequired[str | None]
    suffix: NotRequired[str | None]


class TokensPrompt(TypedDict):
    """A prompt as a dict with its token ids. `multi_modal_data`: as in `TextPrompt`, for one id each."""

    prompt_token_ids: Sequence[int]
    multi_modal_data: NotRequired[Mapping[str, Any] | None]
    mm_processor_kwargs: NotRequired[Mapping[str, Any] | None]
    cache_salt: NotRequired[str | None]


class EmbedsPrompt(TypedDict):
    """A prompt as rows `[T, H]` in place of the embeddings of T tokens, as `inputs_embeds` in transformers.

    `prompt_embeds`: a tensor or an array of floating numbers; or a safetensors file of one tensor or a .npy file, as
    bytes or in base64. `prompt`: the text that they stand for, which is only shown. `cache_salt`: as in `TextPrompt`.
    """

    prompt_embeds: Any
    prompt: NotRequired[str | None]
    cache_salt: NotRequired[str | None]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt | EmbedsPrompt


TEMPLATE_FIELDS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
"""Variables of a chat template that a request has as fields of its own."""

THINKING_VARIABLES = ("enable_thinking", "thinking")
"""Variables of a chat template that turn thinking on or off: Qwen's and most others', DeepSeek's and Granite's."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that the model's chat template turns into a prompt.

    `options` go to `ChatTemplate.render`: `add_generation_prompt`, `tools`, and the template's own variables.
    `split_special_tokens`: special tokens in messages and options are split into tokens of ordinary text, so that no
    user can end a turn; None: the engine's option of that name, by default yes. `cache_salt`: as in `TextPrompt`.
    `calls`: the rules for tools; with choice 'none' the template does not get them. `template`: text to use in place of
    the model's. `mm_processor_kwargs`: as in `TextPrompt`.
    """

    messages: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    split_special_tokens: bool | None = None
    calls: CallRules = CallRules()
    cache_salt: str | None = None
    template: str | None = None
    mm_processor_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TextPair:
    """A query and a document, which a cross-encoder reads as one prompt.

    Attributes:
        instruction: the meaning of "relevant".
        template: text of a chat template to use in place of the model's way to join the two.
    """

    query: str
    document: str
    instruction: str | None = None
    template: str | None = None


Input = Prompt | Conversation | TextPair
"""Any prompt of an engine."""


@dataclass(frozen=True, slots=True)
class CallerRequest:
    """A request as its caller states it. Nothing has checked it yet.

    `params`: say whether it is for tokens or for vectors. `priority`: as in `GenerateRequest`. `lora`: the adapter to
    compute with. `prompt_adapter`: whose rows stand before the prompt.
    """

    request_id: str
    prompt: Input
    params: SamplingParams | PoolingParams
    priority: int = 0
    lora: LoRARequest | None = None
    prompt_adapter: PromptAdapterRequest | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Prompt ids within the vocabulary and the model length, and resolved parameters.

    `seed`: the parameters' seed, or one that the engine drew. `priority`: lower goes first (policy 'priority').
    `arrival_time`: seconds of `time.monotonic()`. `end_token_ids`: the model's end-of-sequence tokens, none with
    `ignore_eos`. `bad_words_ids`: `bad_words` as token sequences to forbid. `guide`: the grammar of
    `structured_outputs`. `pooling`: the prompt is pooled, and no tokens are drawn; then `params` are `NO_TOKENS`.
    `cache_salt`: only requests with the same salt share cached prefixes. `reply`: how the answer to a conversation is
    read; None: as text. `lora`: the adapter to compute with; `adapter`: the number that the engine gives it, 0: none;
    `adapter_digest`: of its content; empty before the engine has it: of any. `prompt_adapter`: whose rows stand before
    the prompt; only its caller reads it. `tiles`: of the prompt's pictures, and given rows, in order. `encoded`: what
    an encoder reads; its rows stand before the prompt, and are no part of it. `rules`: what the model's files say of
    the output's tokens.
    `second_text`: the place of the second text's first token in a pair, for models that tell the texts apart.
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
    lora: LoRARequest | None = None
    adapter: int = 0
    adapter_digest: bytes = b""
    prompt_adapter: PromptAdapterRequest | None = None
    tiles: tuple[TilePlace, ...] = ()
    encoded: TilePlace | None = None
    rules: TokenRules = NO_RULES
    second_text: int | None = None


def tiles_of(request: GenerateRequest) -> tuple[TilePlace, ...]:
    """The tiles of its sequences: pictures, or what an encoder reads."""
    return request.tiles if request.encoded is None else (request.encoded,)


def num_encoder_slots(request: GenerateRequest, block_size: int) -> int:
    """The places of an encoder's rows before the prompt: whole blocks, so that the prompt begins a block."""
    return 0 if request.encoded is None else round_up(request.encoded.num_rows, block_size)


NO_TOKENS = SamplingParams(output_kind=OutputKind.FINAL_ONLY)
"""Parameters of a request that draws nothing: one sequence, one output."""
