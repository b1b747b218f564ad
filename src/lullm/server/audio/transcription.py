"""POST /v1/audio/transcriptions and /v1/audio/translations: a file with a sound, whole; its text back.

A long sound is cut where it is quiet (`lullm.audio.windows`). The pieces are requests of their own, whose texts are
joined. With times, its windows follow one another as the model says (`lullm.audio.transcript.course`).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from lullm.audio.features import HOP, SAMPLING_RATE
from lullm.audio.source import decoded
from lullm.audio.tiling import num_rows
from lullm.audio.transcript.course import Thresholds, Windows, language_in
from lullm.audio.transcript.form import GRANULARITIES, TIMED, subtitles, verbose
from lullm.audio.transcript.question import heard
from lullm.audio.transcript.request import RequestWords
from lullm.audio.transcript.word_times import WordTimes, check_words
from lullm.audio.transcript.words import Words
from lullm.audio.windows import windows
from lullm.config.layer.encoder import EncoderConfig
from lullm.errors import ConfigError, InvalidRequestError
from lullm.server.audio.asking import Asker
from lullm.server.audio.schema import TranscriptionBody, TranslationBody, form_fields
from lullm.server.audio.text_stream import TextStream
from lullm.server.context import ServerContext, off_loop
from lullm.server.error import ApiError
from lullm.server.gate.request_log import RECORD, begun, log_prompts
from lullm.server.openai.event_stream import EventStream
from lullm.server.openai.generation import Generation, prepare_all, public_id
from lullm.server.openai.schema import CompletionBody
from lullm.server.openai.validation import check_priority, keep_alive_s, sampling_params
from lullm.server.sse import until_disconnect
from lullm.types.sampling_params import OutputKind

_DRAWN = (
    "temperature", "seed", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
)  # fmt: skip
_THRESHOLDS = {
    "no_speech_threshold": "no_speech",
    "logprob_threshold": "logprob",
    "compression_ratio_threshold": "compression_ratio",
}


@dataclass(frozen=True, slots=True)
class Transcription:
    """A handler. `task`: 'transcribe', or 'translate' into English."""

    context: ServerContext
    body_type: type[TranslationBody]
    task: str
    media_type: str = "multipart/form-data"
    _words: dict[ServerContext, Words | RequestWords] = field(default_factory=dict)

    async def __call__(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of the form's field."""
        content_type = request.headers.get("content-type", "")
        body = await self.context.read(self.body_type, request, lambda raw: form_fields(content_type, raw))
        context = self.context.of(body.model)
        words, language = self._checked(context, body)
        try:
            samples, rate = await off_loop(request, lambda: decoded(body.file))
        except (InvalidRequestError, ConfigError) as error:
            raise ApiError(400, str(error), param="file", code="invalid_sound") from None
        context.queue.check()
        answer_id = public_id("trsc", request.headers)
        timeout_s = self.context.options.request_timeout_s
        work = _Work(context, words, body, answer_id, self.task, language)
        usage = {"type": "duration", "seconds": -(-(len(samples) / rate) // 1)}
        if body.response_format in TIMED:
            timed = work.with_times((samples, rate), request)
            found = await until_disconnect(request.receive, timed, timeout_s)
            return PlainTextResponse(found) if isinstance(found, str) else JSONResponse({**found, "usage": usage})
        generation = await until_disconnect(request.receive, work.begun((samples, rate)), timeout_s)
        generation.record = begun(request, generation.id, generation.logged_usage)
        log_prompts(generation.requests, context.options)
        if body.stream:
            return EventStream(generation, TextStream(len(generation.requests)), timeout_s)
        text = await until_disconnect(request.receive, _whole(generation), timeout_s)
        if body.response_format == "text":
            return PlainTextResponse(text + "\n")
        return JSONResponse({"text": text, "usage": usage})

    def _checked(self, context: ServerContext, body: TranslationBody) -> tuple[Words | RequestWords, str | None]:
        """The words of the model's prompts, and the language. Raises ApiError 400, InvalidRequestError: the model, or
        this server, lacks what is asked for.
        """
        model, config = context.engine.model_config, context.engine.config
        if model.hearing is None and (model.encoder is None or model.encoder.reads != "audio"):
            text = f"the model {context.model_name!r} does not hear; serve a Whisper or a Voxtral (docs/audio.md)"
            raise ApiError(400, text, param="model", code="no_sound")
        has_times = body.response_format in TIMED
        _check_times(body, has_times, config.logprobs_mode == "raw_logprobs")
        if "word" in (body.timestamp_granularities or ()):
            check_words(model.encoder, self.task)
        if context not in self._words:
            tokenizer = context.engine.tokenizer
            if model.hearing is not None:
                self._words[context] = RequestWords(tokenizer)
            else:
                self._words[context] = Words(tokenizer, model.vocab_size, config.max_model_len)
        words = self._words[context]
        return words, words.check(self.task, body.language, has_times)


@dataclass(frozen=True, slots=True)
class _Work:
    """The work on one file. `language`: its code, None: it has to be heard."""

    context: ServerContext
    words: Words | RequestWords
    body: TranslationBody
    id: str
    task: str
    language: str | None

    async def begun(self, sound: tuple[np.ndarray, int]) -> Generation:
        """The engine's requests: one for each piece of the sound. Raises ApiError, InvalidRequestError."""
        (samples, rate), engine = sound, self.context.engine
        if isinstance(self.words, RequestWords):
            hearing = engine.model_config.hearing
            assert hearing is not None, "it has such words"
            ids, pieces = self.words.prompt(self.language, self.body.prompt), [samples]
            asked = self._asked(len(ids) - 1 + num_rows(len(samples), rate, hearing))
        else:
            pieces = windows(samples, rate, self._window_s)
            asker = Asker(self.context, self.id, check_priority(self.body, engine), None)
            language = await self._spoken(asker, (pieces[0], rate), self.words)
            ids = self.words.prompt(self.task, language, self.body.prompt)
            asked = self._asked(len(ids))
        params, keep_alive = sampling_params(asked, engine), keep_alive_s(self.body)
        prompts = [heard(ids, (piece, rate)) for piece in pieces]
        requests = await prepare_all(engine, self.id, prompts, params, check_priority(self.body, engine))
        return Generation(self.context, self.id, asked, requests, keep_alive)

    async def with_times(self, sound: tuple[np.ndarray, int], request: Request) -> str | dict[str, Any]:
        """The answer with times: text, or the fields of JSON. Raises ApiError, InvalidRequestError."""
        (samples, rate), engine, body, words = sound, self.context.engine, self.body, self.words
        assert isinstance(words, Words), "checked: others have no times"
        keep_alive = keep_alive_s(body)
        asker = Asker(self.context, self.id, check_priority(body, engine), keep_alive, request.scope[RECORD])
        language = await self._spoken(asker, (samples[: int(self._window_s * rate)], rate), words)
        ids = words.prompt(self.task, language, body.prompt, has_times=True)
        params = sampling_params(self._asked(len(ids)), engine)
        params = params.replace(timestamps=True, logprobs=0, output_kind=OutputKind.FINAL_ONLY)
        given = {own: value for name, own in _THRESHOLDS.items() if (value := getattr(body, name)) is not None}
        heard_windows = Windows(words, sound, self._window_s, ids, params, Thresholds(**given))
        heard_windows.keeps_text = bool(body.condition_on_previous_text)
        granularities = body.timestamp_granularities or ()
        if "word" in granularities:
            heard_windows.word_times = WordTimes.of(self._encoder, language)
        segments = await asker.result(heard_windows.all_segments())
        if body.response_format != "verbose_json":
            return subtitles(str(body.response_format), segments)
        return verbose(self.task, language, len(samples) / rate, segments, granularities)

    async def _spoken(self, asker: Asker, window: tuple[np.ndarray, int], words: Words) -> str:
        if self.language is not None:
            return self.language
        found: str = await asker.result(language_in(words, window))
        return found

    @property
    def _encoder(self) -> EncoderConfig:
        encoder = self.context.engine.model_config.encoder
        assert encoder is not None, "checked"
        return encoder

    @property
    def _window_s(self) -> float:
        return self._encoder.num_frames * HOP / SAMPLING_RATE

    def _asked(self, prompt_len: int) -> CompletionBody:
        """The form's wishes as OpenAI's body for one piece. Raises ApiError: a field is out of range."""
        body, room = self.body, self.context.engine.config.max_model_len - prompt_len
        given: dict[str, Any] = {name: value for name in _DRAWN if (value := getattr(body, name)) is not None}
        most = room if body.max_completion_tokens is None else min(body.max_completion_tokens, room)
        return CompletionBody(
            prompt=[0],
            max_tokens=max(most, 1),
            priority=body.priority,
            stream=body.stream,
            **{"temperature": 0.0} | given,
        )


def _check_times(body: TranslationBody, has_times: bool, has_raw_logprobs: bool) -> None:
    """Raises ApiError 400: fields contradict each other."""

    def refuse(param: str, text: str) -> None:
        raise ApiError(400, text, param=param, code="unsupported_field")

    kinds = body.timestamp_granularities or []
    if unknown := [kind for kind in kinds if kind not in GRANULARITIES]:
        refuse("timestamp_granularities[]", f"timestamp_granularities is segment or word, not {unknown[0]!r}")
    if kinds and body.response_format != "verbose_json":
        refuse("timestamp_granularities[]", "timestamp_granularities needs response_format=verbose_json")
    if not has_times:
        for name in (*_THRESHOLDS, "condition_on_previous_text"):
            if (value := getattr(body, name)) is not None and value is not False:
                refuse(name, f"{name} is for answers with times: response_format {', '.join(TIMED)}")
        return
    if body.stream:
        refuse("stream", f"response_format {body.response_format} cannot be streamed; take json or text")
    if not has_raw_logprobs:
        refuse("response_format", "times need the model's own log-probabilities: --logprobs-mode raw_logprobs")


async def _whole(generation: Generation) -> str:
    """The text of all pieces. Raises as `Generation.run` does."""
    texts = [""] * len(generation.requests)
    async for number, output in generation.last_outputs():
        texts[number] = output.outputs[0].text
    return "".join(texts).strip()


def transcriptions(context: ServerContext) -> Transcription:
    """The handler of /v1/audio/transcriptions."""
    return Transcription(context, TranscriptionBody, "transcribe")


def translations(context: ServerContext) -> Transcription:
    """The handler of /v1/audio/translations."""
    return Transcription(context, TranslationBody, "translate")
