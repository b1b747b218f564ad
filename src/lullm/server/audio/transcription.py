"""POST /v1/audio/transcriptions and /v1/audio/translations: a file with a sound, whole; its text back.

A long sound is cut where it is quiet (`lullm.audio.windows`). The pieces are requests of their own, whose texts are
joined.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from lullm.audio.features import HOP, SAMPLING_RATE
from lullm.audio.source import decoded
from lullm.audio.windows import windows
from lullm.errors import ConfigError, InvalidRequestError
from lullm.server.audio.schema import TranscriptionBody, TranslationBody, form_fields
from lullm.server.audio.text_stream import TextStream
from lullm.server.audio.words import Words
from lullm.server.context import ServerContext, off_loop
from lullm.server.error import ApiError
from lullm.server.gate.request_log import begun, log_prompts
from lullm.server.openai.event_stream import EventStream
from lullm.server.openai.generation import Generation, prepare_all, public_id
from lullm.server.openai.schema import CompletionBody
from lullm.server.openai.validation import check_priority, keep_alive_s, sampling_params
from lullm.server.sse import until_disconnect
from lullm.types.request import Prompt
from lullm.types.sampling_params import SamplingParams

_UNTIMED = ("verbose_json", "srt", "vtt")
_DRAWN = (
    "temperature", "seed", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Transcription:
    """A handler. `task`: 'transcribe', or 'translate' into English."""

    context: ServerContext
    body_type: type[TranslationBody]
    task: str
    media_type: str = "multipart/form-data"
    _words: dict[ServerContext, Words] = field(default_factory=dict)

    async def __call__(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of the form's field."""
        content_type = request.headers.get("content-type", "")
        body = await self.context.read(self.body_type, request, lambda raw: form_fields(content_type, raw))
        context = self.context.of(body.model)
        words = self._checked(context, body)
        try:
            samples, rate = await off_loop(request, lambda: decoded(body.file))
        except (InvalidRequestError, ConfigError) as error:
            raise ApiError(400, str(error), param="file", code="invalid_sound") from None
        context.queue.check()
        answer_id = public_id("trsc", request.headers)
        timeout_s = self.context.options.request_timeout_s
        work = self._begun(context, words, body, answer_id, (samples, rate))
        generation = await until_disconnect(request.receive, work, timeout_s)
        generation.record = begun(request, generation.id, generation.logged_usage)
        log_prompts(generation.requests, context.options)
        if body.stream:
            return EventStream(generation, TextStream(len(generation.requests)), timeout_s)
        text = await until_disconnect(request.receive, _whole(generation), timeout_s)
        if body.response_format == "text":
            return PlainTextResponse(text + "\n")
        seconds = len(samples) / rate
        return JSONResponse({"text": text, "usage": {"type": "duration", "seconds": -(-seconds // 1)}})

    def _checked(self, context: ServerContext, body: TranslationBody) -> Words:
        """The words of the model's prompts. Raises ApiError 400: the model, or this server, lacks what is asked for."""
        encoder = context.engine.model_config.encoder
        if encoder is None or encoder.reads != "audio":
            text = f"the model {context.model_name!r} does not hear; serve a Whisper (docs/audio.md)"
            raise ApiError(400, text, param="model", code="no_sound")
        if body.response_format in _UNTIMED:
            text = f"response_format {body.response_format} needs timestamps, which are not there yet; take json, text"
            raise ApiError(400, text, param="response_format", code="unsupported_field")
        if context not in self._words:
            self._words[context] = Words(context.engine)
        self._words[context].check(self.task, body.language)
        return self._words[context]

    async def _begun(
        self,
        context: ServerContext,
        words: Words,
        body: TranslationBody,
        answer_id: str,
        sound: tuple[np.ndarray, int],
    ) -> Generation:
        """The engine's requests: one for each piece of the sound. Raises ApiError, InvalidRequestError."""
        encoder, (samples, rate) = context.engine.model_config.encoder, sound
        assert encoder is not None, "checked"
        pieces = windows(samples, rate, encoder.num_frames * HOP / SAMPLING_RATE)
        language = body.language
        if language is None and not words.is_english:
            language = await self._language(context, words, answer_id, (pieces[0], rate))
        ids = words.prompt(self.task, language or "en", body.prompt)
        prompts: list[Prompt] = [_heard(ids, (piece, rate)) for piece in pieces]
        return await self._prepared(context, body, answer_id, prompts, len(ids))

    async def _prepared(
        self, context: ServerContext, body: TranslationBody, answer_id: str, prompts: list[Prompt], prompt_len: int
    ) -> Generation:
        """Raises ApiError, InvalidRequestError: a field is out of range."""
        engine, room = context.engine, context.engine.config.max_model_len - prompt_len
        given: dict[str, Any] = {name: value for name in _DRAWN if (value := getattr(body, name)) is not None}
        most = room if body.max_completion_tokens is None else min(body.max_completion_tokens, room)
        asked = CompletionBody(
            prompt=[0],
            max_tokens=max(most, 1),
            priority=body.priority,
            stream=body.stream,
            **{"temperature": 0.0} | given,
        )
        params = sampling_params(asked, engine)
        priority, keep_alive = check_priority(body, engine), keep_alive_s(body)
        requests = await prepare_all(engine, answer_id, prompts, params, priority)
        return Generation(context, answer_id, asked, requests, keep_alive)

    async def _language(
        self, context: ServerContext, words: Words, answer_id: str, sound: tuple[np.ndarray, int]
    ) -> str:
        """The language of the beginning of a sound: the model's most likely one."""
        params = SamplingParams(
            temperature=0.0, max_tokens=1, allowed_token_ids=words.language_ids, skip_special_tokens=False
        )
        requests = await prepare_all(context.engine, answer_id, [_heard(words.start(), sound)], params, 0)
        asked = CompletionBody(prompt=[0])
        [found] = [output async for _, output in Generation(context, answer_id, asked, requests).last_outputs()]
        return words.language_of(found.outputs[0].token_ids[0])


async def _whole(generation: Generation) -> str:
    """The text of all pieces. Raises as `Generation.run` does."""
    texts = [""] * len(generation.requests)
    async for number, output in generation.last_outputs():
        texts[number] = output.outputs[0].text
    return "".join(texts).strip()


def _heard(token_ids: list[int], sound: tuple[np.ndarray, int]) -> Prompt:
    return {"prompt_token_ids": token_ids, "multi_modal_data": {"audio": sound}}


def transcriptions(context: ServerContext) -> Transcription:
    """The handler of /v1/audio/transcriptions."""
    return Transcription(context, TranscriptionBody, "transcribe")


def translations(context: ServerContext) -> Transcription:
    """The handler of /v1/audio/translations."""
    return Transcription(context, TranslationBody, "translate")
