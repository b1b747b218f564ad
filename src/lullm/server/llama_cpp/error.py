"""Errors in the form of llama.cpp's server."""

from typing import Any

from lullm.server.error import ApiError

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}


def envelope(error: ApiError) -> dict[str, Any]:
    """{"error": {"code": status, "message": ..., "type": ...}}"""
    kind = _KINDS.get(error.status, error.kind)
    if error.code == "context_length_exceeded":
        kind = "exceed_context_size_error"
    return {"error": {"code": error.status, "message": error.message, "type": kind}}
