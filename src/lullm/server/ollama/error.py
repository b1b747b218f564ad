"""Errors as Ollama's clients read them."""

from typing import Any

from lullm.server.error import ApiError


def envelope(error: ApiError) -> dict[str, Any]:
    """{"error": message}"""
    return {"error": error.message}
