"""PoolingRules: checks a request's pooling against the model, and fills in the model's defaults."""

from lullm.config.model import ModelConfig
from lullm.config.pooling.pooler import PoolerConfig
from lullm.errors import InvalidRequestError
from lullm.types.pooling.params import Pooling, PoolingActivation, PoolingParams

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
    pooler = model.pooler
    if pooler is None:
        raise InvalidRequestError(
            "this model gives next tokens, and its folder says nothing of embeddings or scores; convert='embed' "
            "(--convert embed) gives it embeddings from its last token, convert='rerank' scores by 'yes' and 'no'",
            code=NO_POOLING,
        )
    if params.task is not None and params.task != pooler.task:
        _refuse_task(params, pooler)
    return Pooling(
        pooler.task, pooler.kind, _activation(params, pooler), _dimensions(params, pooler, model.hidden_size)
    )


def _refuse_task(params: PoolingParams, pooler: PoolerConfig) -> None:
    given = "embeddings, and from them scores of pairs" if pooler.task == "embed" else "scores and classes"
    raise InvalidRequestError(f"this model gives {given}, not what task {params.task!r} asks for", "task", NO_POOLING)


def _activation(params: PoolingParams, pooler: PoolerConfig) -> PoolingActivation:
    if params.normalize is not None and pooler.task != "embed":
        raise InvalidRequestError("normalize is for embeddings; use_activation is for scores and classes", "normalize")
    if params.normalize:
        return "normalize"
    return "none" if False in (params.normalize, params.use_activation) else pooler.activation


def _dimensions(params: PoolingParams, pooler: PoolerConfig, hidden_size: int) -> int | None:
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
    if params.dimensions > hidden_size:
        raise InvalidRequestError(
            f"dimensions={params.dimensions} is above the {hidden_size} that the model has", "dimensions"
        )
    return params.dimensions
