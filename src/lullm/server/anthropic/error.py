"""Errors in the form of Anthropic's API."""

from typing import Any

from lullm.server.error import ApiError

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


THREAD_UNSUPPORTED = "thread_unsupported_request"
"""Anthropic's code for clients that must send the whole conversation each time."""


def envelope(error: ApiError) -> dict[str, Any]:
    """{"type": "error", "error": {"type": ..., "message": ...}}"""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    told: dict[str, Any] = {"type": kind, "message": error.message}
    if error.code == THREAD_UNSUPPORTED:
        told["details"] = {"error_code": error.code, "unsupported": ["thread"]}
    return {"type": "error", "error": told}
