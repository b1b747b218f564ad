"""ResponsesEndpoint: the handler of POST /v1/responses, whose answers may come in the background."""

import asyncio
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Message

from lullm.server.context import ServerContext
from lullm.server.openai.endpoint import AnswerForm, Endpoint, JsonPieces
from lullm.server.openai.generation import Generation
from lullm.server.openai.reply import Reply
from lullm.server.openai.responses.answer import ResponseAnswer
from lullm.server.openai.responses.body import ResponsesBody
from lullm.server.openai.responses.store import ResponseStore
from lullm.server.sse import until_disconnect


@dataclass(frozen=True, slots=True)
class ResponsesEndpoint(Endpoint[ResponsesBody]):
    """See `Endpoint`."""

    @classmethod
    def over(cls, context: ServerContext, store: ResponseStore) -> "ResponsesEndpoint":
        """The endpoint over `context`'s engine, whose responses go into `store`."""

        async def opened(generation: Generation, body: ResponsesBody) -> AnswerForm:
            if body.background:
                store.check_background(body)
            return ResponseAnswer(Reply.of(generation), body, store)

        return cls(context, ResponsesBody, opened, "resp", read=store.read)

    async def answered(self, request: Request, generation: Generation, form: AnswerForm) -> Response:
        assert isinstance(form, ResponseAnswer)
        if not form.body.background:
            return await Endpoint.answered(self, request, generation, form)
        begun = form.store.put(form.begun(), form.body, lambda: asyncio.create_task(self._compute(form)))
        return JsonPieces([begun])

    async def _compute(self, form: ResponseAnswer) -> None:
        """Put the answer into the store. Cancelling it aborts the request."""
        try:
            with self.context.house.counted():
                await until_disconnect(_nobody_leaves, form.whole(), self.context.options.request_timeout_s)
        except Exception as error:  # whatever it is, the response tells it
            form.failed(self.context.api_error(error))


async def _nobody_leaves() -> Message:
    return await asyncio.Future()
