"""Models in the form of Anthropic's API, under the same paths as OpenAI's."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers

from lullm.server.context import ServerContext


def is_asked_for(headers: Headers) -> bool:
    """Whether a client of Anthropic's API asks: all of them send this header."""
    return "anthropic-version" in headers


def card(context: ServerContext, name: str) -> dict[str, Any]:
    """One model."""
    context = context.of(name)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(context.house.started_at, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": context.engine.config.max_model_len,
        "max_tokens": context.engine.config.max_model_len,
    }


def page(context: ServerContext, names: Sequence[str]) -> dict[str, Any]:
    """All models on one page: they are few."""
    data = [card(context, name) for name in names]
    return {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
