"""`lullm run --audio` with an engine in this process."""

import json
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from lullm.cli.talk.sound import TranscriptOptions
from lullm.cli.talk.terminal import Summary
from lullm.engine.interrupt import deferred_interrupt
from lullm.errors import InvalidRequestError, LullmError
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import CallerRequest
from lullm.types.sampling_params import OutputKind, SamplingParams

if TYPE_CHECKING:
    from lullm.audio.transcript.course import Windows
    from lullm.audio.transcript.question import Course, Question
    from lullm.engine.llm_engine import LLMEngine

T = TypeVar("T")
_TOGETHER = 8
"""Windows that are heard at once."""


class Ears:
    """A model that hears, in an engine that this object steps."""

    def __init__(self, engine: "LLMEngine", summary: Summary):
        encoder = engine.model_config.encoder
        if encoder is None or encoder.reads != "audio":
            name = engine.config.served_model_name
            raise InvalidRequestError(f"--audio: the model {name!r} does not hear; take one that does (docs/audio.md)")
        from lullm.audio.features import HOP, SAMPLING_RATE
        from lullm.audio.transcript.words import Words

        self._engine, self._summary, self._encoder = engine, summary, encoder
        self._words = Words(engine.tokenizer, engine.model_config.vocab_size, engine.config.max_model_len)
        self._window_s = encoder.num_frames * HOP / SAMPLING_RATE
        self._num_requests = 0

    def transcript(self, data: bytes, options: TranscriptOptions) -> Iterator[str]:
        """What is said in a file, piece by piece, without the last line's end.

        Raises InvalidRequestError, UnsupportedError: the file, or an option. KeyboardInterrupt: Ctrl-C.
        """
        from lullm.audio.source import decoded
        from lullm.audio.transcript import form
        from lullm.audio.transcript.course import Windows, language_in
        from lullm.audio.transcript.in_order import InOrder
        from lullm.audio.transcript.question import heard
        from lullm.audio.transcript.word_times import WordTimes, check_words
        from lullm.audio.windows import windows

        has_times = options.response_format in form.TIMED
        if options.word_times:
            check_words(self._encoder, options.task)
        language = self._words.check(options.task, options.language, has_times)
        samples, rate = decoded(data)
        pieces = windows(samples, rate, self._window_s)
        if language is None:
            language = self._result(language_in(self._words, (pieces[0], rate)))
        prompt = self._words.prompt(options.task, language, options.earlier, has_times)
        params = self._params(options, len(prompt), has_times)
        if has_times:
            heard_windows = Windows(self._words, (samples, rate), self._window_s, prompt, params)
            if options.response_format == "verbose_json":
                if options.word_times:
                    heard_windows.word_times = WordTimes.of(self._encoder, language)
                segments = self._result(heard_windows.all_segments())
                about = options.task, language, len(samples) / rate
                yield json.dumps(form.verbose(*about, segments, options.granularities), ensure_ascii=False)
            else:
                yield from self._subtitles(options.response_format, heard_windows)
            return
        texts = InOrder(len(pieces))
        for number, output in self._outputs([(heard(prompt, (piece, rate)), params) for piece in pieces]):
            assert isinstance(output, RequestOutput), "it was asked for a text"
            new = texts.add(number, "".join(completion.text for completion in output.outputs), output.finished)
            if options.response_format == "text":
                yield new
        if options.response_format == "json":
            yield json.dumps({"text": texts.text.strip()}, ensure_ascii=False)

    def _subtitles(self, kind: str, heard_windows: "Windows") -> Iterator[str]:
        """Subtitles, window by window."""
        from lullm.audio.transcript import form

        yield form.head(kind)
        number = 0
        while not heard_windows.is_over:
            for segment in self._result(heard_windows.segments()):
                yield form.block(kind, number, segment)
                number += 1

    def _params(self, options: TranscriptOptions, prompt_len: int, has_times: bool) -> SamplingParams:
        room = max(self._engine.config.max_model_len - prompt_len, 1)
        given = {"temperature": 0.0} | options.changes
        given["max_tokens"] = min(given.get("max_tokens") or room, room)
        if has_times:
            given |= {"timestamps": True, "logprobs": 0, "output_kind": OutputKind.FINAL_ONLY}
        else:
            given["output_kind"] = OutputKind.DELTA
        return self._engine.default_params.replace(**given)

    def _result(self, course: "Course[T]") -> T:
        try:
            questions = next(course)
            while True:
                ended = {number: output for number, output in self._outputs(questions) if output.finished}
                questions = course.send([ended[number] for number in range(len(questions))])
        except StopIteration as end:
            found: T = end.value
            return found

    def _outputs(self, questions: "list[Question]") -> Iterator[tuple[int, EngineOutput]]:
        """(number of the question, output) as they come. Ctrl-C aborts all.

        Features of a window take 0.1 s, so those of a long sound are not all made before the first text.
        """
        waiting = deque(enumerate(questions))
        running: dict[str, int] = {}
        with deferred_interrupt() as interrupt:
            while waiting or running:
                if interrupt.is_set():
                    self._engine.abort_request(list(running), wants_output=False)
                    break
                while waiting and len(running) < _TOGETHER:
                    number, (prompt, params) = waiting.popleft()
                    request_id = f"sound-{self._num_requests}"
                    self._num_requests += 1
                    asked = CallerRequest(request_id, prompt, params)
                    self._engine.add_processed(self._engine.input_processor.process(asked))
                    running[request_id] = number
                for output in self._engine.step():
                    number = running.pop(output.request_id) if output.finished else running[output.request_id]
                    if isinstance(output, RequestOutput):
                        self._summary.add(output)
                    _check_ended(output)
                    yield number, output


def _check_ended(output: EngineOutput) -> None:
    """Raises LullmError: it was aborted."""
    ends = output.outputs if isinstance(output, RequestOutput) else [output]
    for end in ends:
        if end.finish_reason == "abort":
            raise LullmError(f"the transcript ends here: {end.stop_reason}")
