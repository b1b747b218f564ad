"""Errors on the wire: every failure is sent as one envelope with the right status.

{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}, or the form of the path's dialect.
"""

import math
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from lullm.errors import (
    ConfigError,
    EngineAsleepError,
    EngineDeadError,
    InvalidRequestError,
    LullmError,
    ModelLoadError,
    ModelUnavailableError,
    SleepCancelledError,
    WakeUpError,
)
from lullm.log import get_logger

logger = get_logger(__name__)

MAX_MESSAGE_CHARS = 1000
ASLEEP_RETRY_S = 5  # when to ask a sleeping engine again; its wake-up cannot be predicted, and asking costs little
_ROUTING = {
    404: ("not_found", "there is no such endpoint here; GET /docs lists those that there are"),
    405: ("method_not_allowed", "this endpoint takes another method; GET /docs lists endpoints and their methods"),
}
"""Status of a request that no route takes -> code and message."""
_BY_COMPLETIONS = "POST /v1/completions takes token ids as prompt, and gives them with return_token_ids"
_BY_FILES = "`lullm run-batch` answers batch files; a server takes many requests at once"
_BY_METHODS = (
    "POST /collective_rpc calls reload_weights, with weights_path of another checkpoint, and methods of a "
    "worker_extension_cls"
)
ELSEWHERE = {
    "/generate": _BY_COMPLETIONS,
    "/inference/v1/generate": _BY_COMPLETIONS,
    "/invocations": "POST /v1/chat/completions and its like take what SageMaker passes on",
    "/v1/chat/completions/batch": "send all conversations to POST /v1/chat/completions at once: they share batches",
    "/v1/chat/completions/render": "POST /apply-template gives the prompt's text, and POST /tokenize its tokens",
    "/v1/completions/render": "POST /tokenize gives a prompt's tokens",
    "/v1/responses/render": "POST /v1/responses/input_tokens counts a prompt's tokens",
    "/v1/messages/render": "POST /v1/messages/count_tokens counts a prompt's tokens",
    "/v1/conversations": "previous_response_id goes on from a response, with --response-store",
    **dict.fromkeys(("/v1/files", "/v1/batches", "/v1/messages/batches"), _BY_FILES),
    **dict.fromkeys(("/embed", "/v2/embed"), "it is POST /v1/embeddings"),
    "/abort_requests": "a request ends when its client closes the connection",
    **dict.fromkeys(("/reset_mm_cache", "/reset_encoder_cache"), "POST /reset_prefix_cache forgets pictures, too"),
    "/release_kv_cache_memory": "it is POST /sleep with tags ['kv_cache']",
    "/lora-adapters": "a request names its adapter as its model",
    **dict.fromkeys(("/init_weight_transfer_engine", "/start_weight_update", "/finish_weight_update"), _BY_METHODS),
    **dict.fromkeys(("/update_weights", "/update_weights_from_disk"), _BY_METHODS),
    **dict.fromkeys(("/start_draft_weight_update", "/shutdown_weight_transfer_engine"), _BY_METHODS),
    **dict.fromkeys(
        ("/weight_info", "/update_weight_version"),
        "POST /collective_rpc with weights_version counts the changes of weights",
    ),
    "/weight_checker": "POST /collective_rpc with compute_weight_checksums gives the checksum of each parameter",
    "/kv_event_sources": "prefixes are not passed between engines",
    **dict.fromkeys(("/scale_elastic_ep", "/is_scaling_elastic_ep"), "the number of workers and replicas stays"),
    **dict.fromkeys(
        ("/fault_tolerance/status", "/fault_tolerance/apply"), "GET /health says whether the engine serves"
    ),
    **dict.fromkeys(("/v1/chat/completions/derender", "/v1/completions/derender"), "POST /detokenize gives the text"),
    "/generative_scoring": "POST /v1/completions with prompt_logprobs scores texts, POST /score pairs",
    "/cohere/v2/chat": "it is POST /v1/chat/completions",
    **dict.fromkeys(("/start_profile", "/stop_profile"), "LLM.start_profile(folder) writes profiles"),
}
"""Endpoints of other servers that are not here -> what to call in their place."""


CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that has gone; only the log shows it."""


class ClientDisconnectedError(Exception):
    """The client has gone and reads no answer."""


class ApiError(Exception):
    """A failure that already knows its HTTP status. `param` names the offending field, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def message(self) -> str:
        """The text to send: a message that quotes a huge input is cut."""
        message = str(self)
        return message if len(message) <= MAX_MESSAGE_CHARS else message[:MAX_MESSAGE_CHARS] + " ..."

    @property
    def kind(self) -> str:
        """OpenAI's `type`, which tells the client's faults from the server's."""
        return "invalid_request_error" if self.status < 500 else "server_error"

    def envelope(self) -> dict[str, Any]:
        """The JSON body in OpenAI's dialect."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self, envelope: "Envelope | None" = None) -> JSONResponse:
        """The response. `envelope`: the dialect's form, if it is not OpenAI's."""
        content = envelope(self) if envelope else self.envelope()
        return JSONResponse(content, status_code=self.status, headers=self.headers)


Envelope = Callable[[ApiError], dict[str, Any]]
"""A dialect's form of an error."""


def shutting_down() -> ApiError:
    """The answer to requests that come or end while the server drains."""
    return ApiError(503, "the server is shutting down", code="shutting_down", headers={"Connection": "close"})


def to_api_error(error: Exception) -> ApiError:
    """Any exception as an ApiError. Faults of the server are logged. The text of an unknown error is not sent."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        code, message = _ROUTING.get(error.status_code, (None, str(error.detail)))
        return ApiError(error.status_code, message, code=code, headers=dict(error.headers or {}))
    if isinstance(error, InvalidRequestError):
        return ApiError(400, str(error), param=error.param, code=error.code)
    for kind, status, code, logged in FAILURES:
        if isinstance(error, kind):
            if logged:
                logger.error("%s: %s", logged, error)
            message = f"the engine failed: {error}" if kind is EngineDeadError else str(error)
            return ApiError(status, message, code=code, headers=_retry_after(error))
    logger.error("a request failed unexpectedly", exc_info=error)
    return ApiError(500, "internal server error", code="internal_error")


FAILURES: tuple[tuple[type[LullmError], int, str, str], ...] = (
    (ConfigError, 400, "unsupported", ""),  # mostly UnsupportedError
    (EngineAsleepError, 503, "engine_asleep", ""),
    (ModelUnavailableError, 503, "model_unavailable", ""),
    (SleepCancelledError, 409, "sleep_cancelled", ""),
    (WakeUpError, 500, "wake_up_failed", "the engine could not be woken"),
    (ModelLoadError, 500, "load_failed", "the weights could not be read"),
    (EngineDeadError, 500, "engine_failed", "a request failed with the engine"),
)
"""Errors of the engine: status, code, and what the log says of a fault of the server. The first that fits is taken."""


def _retry_after(error: LullmError) -> dict[str, str] | None:
    if isinstance(error, EngineAsleepError):
        return {"Retry-After": str(ASLEEP_RETRY_S)}
    if isinstance(error, ModelUnavailableError):
        return {"Retry-After": str(max(math.ceil(error.retry_s), 1))}
    return None


def install_error_handlers(app: FastAPI, response: Callable[[Exception, str], Response]) -> None:
    """Answer failures of the app's routes, and its 404 and 405, by `response` of an error and a path."""

    async def answer(request: Request, error: Exception) -> Response:
        path = request.url.path
        if isinstance(error, HTTPException) and error.status_code == 404 and path in ELSEWHERE:
            error = ApiError(404, f"there is no such endpoint here; {ELSEWHERE[path]}", code=_ROUTING[404][0])
        return response(error, path)

    for kind in (ApiError, HTTPException, LullmError, ClientDisconnect, ClientDisconnectedError):
        app.add_exception_handler(kind, answer)
