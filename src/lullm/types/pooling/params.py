"""PoolingParams: a caller's parameters of one pooling request, with vLLM's names. Checked when it is built."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from lullm.errors import InvalidRequestError
from lullm.types.vllm_argument import VLLM_POOLING, takes_vllms

PoolingTask = Literal["embed", "classify", "token_embed", "token_classify", "align"]
"""'embed': a vector of hidden states; 'classify': a number per label, or one score. 'token_...': one of each token.

'align': for each token, where it attends to in a sound, by the heads that follow it (`EncoderConfig.alignment_heads`).
"""

TextTask = Literal["embed", "classify", "score", "token_embed", "token_classify"]
"""vLLM's names: 'score' is 'classify' of a model with one label."""

AskedTask = Literal[TextTask, "align"]

PoolingKind = Literal["last", "cls", "mean", "all"]
"""Which rows of a sequence count: the last one, the first one, the mean of all, or each for itself."""

EVERY_TOKEN = -1
"""`step_tag_id`: no token is a tag, so all rows are kept."""

PoolingActivation = Literal["none", "normalize", "sigmoid", "softmax"]
"""The step after pooling and head: none, division by the L2 norm, or probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """Parameters of one pooling request.

    Args:
        dimensions: the number of leading elements of an embedding to keep, for models that are trained for that
            (Matryoshka, https://arxiv.org/abs/2205.13147); normalized afterwards.
        use_activation: False turns off the step that the model's folder puts after the pooling: the L2 norm of an
            embedding, the sigmoid or softmax of a score. None and True: as the folder says.
        normalize: an older name of `use_activation` for embeddings; True normalizes even if the folder does not.
        truncate_prompt_tokens: keep so many last tokens of the prompt; -1: as many as the model's length.
        step_tag_id: task 'token_classify' keeps only the rows of this token, which ends the steps of a solution; -1:
            all rows; None: as the model says.
        align_from: task 'align' gives the rows of the prompt's tokens from this one on; None: of all.
        task: the task that the caller expects, for `encode`; the other calls set it.

    Raises:
        InvalidRequestError: a value is out of range; `.param` names the field.
    """

    dimensions: int | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: int | None = None
    step_tag_id: int | None = None
    align_from: int | None = None
    task: AskedTask | None = None

    def __post_init__(self) -> None:
        leasts = {"dimensions": 1, "truncate_prompt_tokens": -1, "step_tag_id": EVERY_TOKEN, "align_from": 0}
        for name, least in leasts.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least or (name, value) == _NO_TOKENS:
                bounds = (
                    "-1 or an integer of at least 1" if name == _NO_TOKENS[0] else f"an integer of at least {least}"
                )
                raise InvalidRequestError(f"{name} must be {bounds}, not {value!r}", name)
        for name in ("use_activation", "normalize"):
            if not isinstance(getattr(self, name), bool | None):
                raise InvalidRequestError(f"{name} must be true or false, not {getattr(self, name)!r}", name)
        if None not in (self.normalize, self.use_activation) and self.normalize != self.use_activation:
            raise InvalidRequestError("normalize and use_activation contradict each other; give one", "normalize")
        if self.task is not None and self.task not in get_args(AskedTask):
            raise InvalidRequestError(f"task must be one of {', '.join(get_args(AskedTask))}", "task")

    def expecting(self, task: AskedTask | None) -> "PoolingParams":
        """A copy for a caller that expects `task`; None: any. Raises InvalidRequestError: it expects another."""
        if task is None or self.task == task:
            return self
        if self.task is not None:
            raise InvalidRequestError(f"pooling_params ask for the task {self.task!r}, the call for {task!r}", "task")
        return replace(self, task=task)


# Wraps the dataclass's `__init__`, since vLLM's other arguments are not fields.
PoolingParams.__init__ = takes_vllms(VLLM_POOLING)(PoolingParams.__init__)  # type: ignore[method-assign]

_NO_TOKENS = ("truncate_prompt_tokens", 0)


@dataclass(frozen=True, slots=True)
class Pooling:
    """A request's pooling after validation.

    `dimensions`: the leading elements that are kept, before the activation; None: all. `step_tag_id`: of kind 'all',
    the token whose rows are kept; None: every token's. `first`: of kind 'all', the first token whose row is wanted.
    """

    task: PoolingTask
    kind: PoolingKind
    activation: PoolingActivation
    dimensions: int | None = None
    step_tag_id: int | None = None
    first: int = 0
