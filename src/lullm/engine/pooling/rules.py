"""PoolingRules: checks a request's pooling against the model, and fills in the model's defaults."""

from collections.abc import Sequence

from lullm.config.model import ModelConfig
from lullm.config.pooling.pooler import PoolerConfig
from lullm.errors import InvalidRequestError
from lullm.types.pooling.params import (
    EVERY_TOKEN,
    AskedTask,
    Pooling,
    PoolingActivation,
    PoolingParams,
    PoolingTask,
)
from lullm.units import MIB, format_bytes

NO_POOLING = "no_pooling"
"""Code of the error that the model does not pool, or not as asked."""


def check_generates(model: ModelConfig) -> None:
    """Check that the model gives next tokens. Raises InvalidRequestError."""
    if model.generates:
        return
    given = "embeddings" if model.pooler is not None and model.pooler.task == "embed" else "scores and classes"
    raise InvalidRequestError(
        f"this model gives {given}, not text: its folder says so, or runner='pooling' does; where the checkpoint has a "
        "head for next tokens, runner='generate' uses it",
        code="no_generation",
    )


def resolved_pooling(model: ModelConfig, params: PoolingParams) -> Pooling:
    """The complete pooling of one request. Raises InvalidRequestError: the model does not pool, or not as asked."""
    if params.task == "align":
        return _alignment(model, params)
    if params.align_from is not None:
        raise InvalidRequestError("align_from is for the task 'align'", "align_from")
    pooler = model.pooler
    if pooler is None:
        raise InvalidRequestError(
            "this model gives next tokens, and its folder says nothing of embeddings or scores; convert='embed' "
            "(--convert embed) gives it embeddings from its last token, convert='rerank' scores by 'yes' and 'no'",
            code=NO_POOLING,
        )
    task = pooler.task if params.task is None else _answered(params.task, pooler)
    by_token = task.startswith("token_")
    if task == "token_classify" and pooler.task == "classify" and model.family.encoder_only is not None:
        raise InvalidRequestError(
            "this encoder's labels are of whole texts, not of tokens: use classify", "task", NO_POOLING
        )
    return Pooling(
        task,
        "all" if by_token else pooler.kind,
        _activation(params, pooler),
        _dimensions(params, pooler, model.pooled_size),
        _step_tag_id(params, pooler, task),
    )


MOST_ROW_BYTES = 512 * MIB
"""Bytes of one request's rows: 32,768 tokens of 4096 numbers. They wait in host memory until the last one is there."""


def check_rows(model: ModelConfig, pooling: Pooling, token_ids: Sequence[int]) -> None:
    """Check that a request's rows may be held. Raises InvalidRequestError."""
    if pooling.first >= len(token_ids):
        raise InvalidRequestError(
            f"align_from={pooling.first} leaves nothing of a prompt of {len(token_ids)} tokens", "align_from"
        )
    if pooling.task == "align":
        assert model.encoder is not None, "the request was resolved"
        num_columns = len(model.encoder.alignment_heads) * model.encoder.max_rows
        num_rows = len(token_ids) - pooling.first
    else:
        assert model.pooler is not None, "the request was resolved"
        num_rows, num_columns = model.pooler.answer_shape(pooling, token_ids, model.pooled_size)
    if pooling.kind == "all" and 4 * num_rows * num_columns > MOST_ROW_BYTES:
        raise InvalidRequestError(
            f"{num_rows} rows of {num_columns} numbers take {format_bytes(4 * num_rows * num_columns)}, and one "
            f"request may hold {format_bytes(MOST_ROW_BYTES)}; send fewer tokens (truncate_prompt_tokens), ask for "
            "fewer dimensions, or for one vector of the prompt (task 'embed')",
            "prompt",
            "too_many_numbers",
        )


def _alignment(model: ModelConfig, params: PoolingParams) -> Pooling:
    encoder = model.encoder
    if encoder is None or encoder.reads != "audio":
        raise InvalidRequestError(
            "the task 'align' is for a Whisper: it says what a text attends to in a sound", "task"
        )
    if not encoder.alignment_heads:
        raise InvalidRequestError(f"it is not known where this model's words are: {encoder.no_alignment}", "task")
    others = ("dimensions", "use_activation", "normalize", "truncate_prompt_tokens", "step_tag_id")
    if given := [name for name in others if getattr(params, name) is not None]:
        raise InvalidRequestError(f"{given[0]} does not go with the task 'align'; leave it out", given[0])
    return Pooling("align", "all", "none", first=params.align_from or 0)


def _answered(asked: AskedTask, pooler: PoolerConfig) -> PoolingTask:
    """The model's task for the one that is asked for. Raises InvalidRequestError: it has none."""
    task: PoolingTask = "classify" if asked == "score" and pooler.can_score else asked  # type: ignore[assignment]
    if task in pooler.tasks:
        return task
    if asked == "score" and pooler.task == "embed":
        raise InvalidRequestError(
            "a score is of a pair of texts, which this model embeds one by one: use LLM.score, or POST /score",
            "task",
            NO_POOLING,
        )
    given = {
        "embed": "embeddings, and from them scores of pairs",
        "classify": "scores and classes",
        "token_classify": "labels of tokens",
    }[pooler.task]
    raise InvalidRequestError(
        f"this model gives {given}, not what task {asked!r} asks for; its tasks are {', '.join(pooler.tasks)}",
        "task",
        NO_POOLING,
    )


def _step_tag_id(params: PoolingParams, pooler: PoolerConfig, task: PoolingTask) -> int | None:
    if task != "token_classify":
        if params.step_tag_id is not None:
            raise InvalidRequestError("step_tag_id is for the task 'token_classify'", "step_tag_id")
        return None
    tag = pooler.step_tag_id if params.step_tag_id is None else params.step_tag_id
    return None if tag == EVERY_TOKEN else tag


def _activation(params: PoolingParams, pooler: PoolerConfig) -> PoolingActivation:
    if params.normalize is not None and pooler.task != "embed":
        raise InvalidRequestError("normalize is for embeddings; use_activation is for scores and classes", "normalize")
    if params.normalize:
        return "normalize"
    return "none" if False in (params.normalize, params.use_activation) else pooler.activation


def _dimensions(params: PoolingParams, pooler: PoolerConfig, pooled_size: int) -> int | None:
    if params.dimensions is None:
        return None
    if pooler.task != "embed":
        raise InvalidRequestError("dimensions is for embeddings; this model gives scores and classes", "dimensions")
    if pooler.dimensions is not None and params.dimensions not in pooler.dimensions:
        allowed = ", ".join(map(str, pooler.dimensions))
        raise InvalidRequestError(
            f"dimensions={params.dimensions} is none of the sizes that the model is trained for: {allowed}",
            "dimensions",
        )
    if params.dimensions > pooled_size:
        raise InvalidRequestError(
            f"dimensions={params.dimensions} is above the {pooled_size} that the model has", "dimensions"
        )
    return params.dimensions
