"""Errors in the form of Ollama's API."""

from typing import Any

from lullm.server.error import ApiError


def envelope(error: ApiError) -> dict[str, Any]:
    """{"error": message}"""
    return {"error": error.message}
