"""OutputProcessor: makes texts, log-probabilities and `RequestOutput`s from drawn tokens. Vectors: `pooling/output`."""

from collections.abc import Iterable

from lullm.engine.hibernation.text_image import RequestTextImage, TextImage
from lullm.engine.pooling.output import RequestVector
from lullm.engine.stream_pace import StreamPace
from lullm.errors import HibernationError
from lullm.sched.intake import SequenceUpdate
from lullm.text.detokenizer import IncrementalDetokenizer
from lullm.text.stop import StopStrings
from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import CompletionOutput, LogprobList, LogprobRows, PositionLogprobs, RequestOutput
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import OutputKind
from lullm.types.sequence import Sequence, SequenceGroup, SequenceStatus
from lullm.types.step import DrawnToken


def _detokenizer_of(request: GenerateRequest, tokenizer: Tokenizer) -> IncrementalDetokenizer | None:
    """The detokenizer of one of the request's sequences. It shows marks of the reply's parts, even special ones."""
    if not request.params.detokenize:
        return None
    shown = request.reply.shown_token_ids if request.reply else frozenset()
    return IncrementalDetokenizer(tokenizer, request.params.skip_special_tokens, request.prompt_token_ids, shown)


class SequenceText:
    """The text of one sequence so far, and how much of it deltas have sent."""

    def __init__(self, request: GenerateRequest, tokenizer: Tokenizer):
        params = request.params
        self._tokenizer = tokenizer
        self._params = params
        self._detokenizer = _detokenizer_of(request, tokenizer)
        self._stop = StopStrings(params.stop or (), params.include_stop_str_in_output)
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs = LogprobRows()  # of the tokens that no delta has sent yet
        self.cumulative_logprob = 0.0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._num_sent_chars = 0
        self._num_sent_tokens = 0
        self._is_finish_sent = False

    def append(self, drawn: DrawnToken, is_end_token: bool) -> str | None:
        """Append a drawn token. Returns the stop string that it completes, or None."""
        self.token_ids.append(drawn.token_id)
        if drawn.logprobs:
            self.cumulative_logprob += drawn.logprobs[0][1]
            if self._params.logprobs is not None:
                self.logprobs.append(drawn.logprobs)
        # The end token belongs to the text only with `include_stop_str_in_output`.
        if self._detokenizer is None or (is_end_token and not self._params.include_stop_str_in_output):
            return None
        piece = self._detokenizer.append((drawn.token_id,))
        if len(self.token_ids) < self._params.min_tokens:
            self.text += piece
            return None
        shown, stop = self._stop.push(piece)
        self.text += shown
        return stop

    def finish(self, finish_reason: str | None, stop_reason: int | str | None, is_stop_string: bool = False) -> None:
        """End the text. Idempotent."""
        if self.finish_reason is not None:
            return
        if not is_stop_string and self._detokenizer is not None:
            self.text += self._stop.push(self._detokenizer.finish()).text + self._stop.flush()
        self.finish_reason, self.stop_reason = finish_reason, stop_reason

    def image(self, index: int) -> TextImage:
        """The text as plain data. `index`: of its sequence."""
        return TextImage(
            index=index,
            text=self.text,
            token_ids=list(self.token_ids),
            logprobs=self.logprobs.to_bytes(),
            cumulative_logprob=self.cumulative_logprob,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            num_sent_chars=self._num_sent_chars,
            num_sent_tokens=self._num_sent_tokens,
            is_finish_sent=self._is_finish_sent,
        )

    def restore(self, image: TextImage) -> None:
        """Go on from an image. Raises HibernationError: with this tokenizer the tokens have another text."""
        if image.finish_reason is None:
            for token_id in image.token_ids:
                self.append(DrawnToken(-1, token_id), is_end_token=False)
            if self.text != image.text:
                raise HibernationError(
                    "the tokens so far have another text here: was another tokenizer given, or has it changed?"
                )
        self.text, self.token_ids, self.logprobs = image.text, image.token_ids, LogprobRows.from_bytes(image.logprobs)
        self.cumulative_logprob = image.cumulative_logprob
        self.finish_reason, self.stop_reason = image.finish_reason, image.stop_reason
        self._num_sent_chars, self._num_sent_tokens = image.num_sent_chars, image.num_sent_tokens
        self._is_finish_sent = image.is_finish_sent

    @property
    def has_news(self) -> bool:
        """Whether the next delta would have contents."""
        return (
            len(self.token_ids) > self._num_sent_tokens
            or len(self.text) > self._num_sent_chars
            or (self.finish_reason is not None and not self._is_finish_sent)
        )

    @property
    def mean_logprob(self) -> float:
        return self.cumulative_logprob / max(len(self.token_ids), 1)

    def output(self, index: int, delta: bool) -> CompletionOutput:
        """The whole completion so far, or only the part that no delta has sent yet."""
        first_char, first_token = (self._num_sent_chars, self._num_sent_tokens) if delta else (0, 0)
        wants_logprobs = self._params.logprobs is not None
        output = CompletionOutput(
            index=index,
            text=self.text[first_char:],
            token_ids=self.token_ids[first_token:],
            cumulative_logprob=self.cumulative_logprob if wants_logprobs else None,
            logprobs=self._logprob_list() if wants_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
        if delta:
            if wants_logprobs:
                self.logprobs = LogprobRows()
            self._num_sent_chars, self._num_sent_tokens = len(self.text), len(self.token_ids)
            self._is_finish_sent = self.finish_reason is not None
        return output

    def _logprob_list(self) -> LogprobList[PositionLogprobs]:
        """A copy of the log-probabilities that are kept; later tokens do not change it."""
        return LogprobList(self.logprobs, range(len(self.logprobs)), self._tokenizer.decode_token)


class RequestText:
    """The texts of one request's sequences, and the form of its outputs."""

    def __init__(self, group: SequenceGroup, tokenizer: Tokenizer, pace: StreamPace):
        self._group = group
        self._pace = pace
        self._due_s = 0.0  # time of the next delta
        self._tokenizer = tokenizer
        self._texts: dict[int, SequenceText] = {}
        params = group.request.params
        # With best_of and beams, the n completions are known only at the end.
        is_late = params.num_sequences > params.n or params.beam_width is not None
        self._kind = OutputKind.FINAL_ONLY if is_late else params.output_kind
        self._is_prompt_sent = False

    def image(self) -> RequestTextImage:
        """The texts as plain data."""
        return RequestTextImage([text.image(index) for index, text in self._texts.items()], self._is_prompt_sent)

    def restore(self, image: RequestTextImage) -> None:
        """Go on from an image. Raises HibernationError: see `SequenceText.restore`."""
        for each in image.texts:
            text = self._texts[each.index] = SequenceText(self._group.request, self._tokenizer)
            text.restore(each)
        self._is_prompt_sent = image.is_prompt_sent

    def text_of(self, seq: Sequence) -> SequenceText:
        text = self._texts.get(seq.index)
        if text is None:
            text = self._texts[seq.index] = SequenceText(self._group.request, self._tokenizer)
        return text

    def take(self, update: SequenceUpdate) -> str | None:
        """Apply a sequence's change by a step. Returns the stop string that ends the sequence now, or None."""
        seq = update.seq
        text = self.text_of(seq)
        if text.finish_reason is not None:  # an earlier token of the same step completed a stop string
            return None
        is_end_token = update.is_end and seq.status is SequenceStatus.FINISHED_STOPPED
        stop = text.append(update.drawn, is_end_token) if update.drawn is not None else None
        if stop is not None:
            text.finish("stop", stop, is_stop_string=True)
        elif update.is_end:
            text.finish(seq.status.finish_reason, seq.stop_reason)
        return stop

    def abort(self) -> None:
        """Mark the request as aborted."""
        for seq in self._group.seqs:
            self.text_of(seq).finish(seq.status.finish_reason, seq.stop_reason)

    def output(self) -> RequestOutput | None:
        """The request's output after this step, or None."""
        group, params = self._group, self._group.request.params
        finished = group.is_finished
        if self._kind is OutputKind.FINAL_ONLY and not finished:
            return None
        delta = self._kind is OutputKind.DELTA
        if delta and not finished:
            if not self._pace.is_due(self._due_s):
                return None
            self._due_s = self._pace.next_due()
        texts = sorted(self._texts.items())
        if params.beam_width is not None:
            outputs = self._beam_outputs()
        elif params.num_sequences > params.n:
            texts = sorted(texts, key=lambda item: -item[1].mean_logprob)[: params.n]
            outputs = [text.output(rank, delta) for rank, (_, text) in enumerate(texts)]
        else:
            outputs = [text.output(index, delta) for index, text in texts if not delta or text.has_news]
        return RequestOutput(
            request_id=group.request_id,
            prompt=group.request.prompt,
            prompt_token_ids=group.request.prompt_token_ids,
            outputs=outputs,
            finished=finished,
            metrics=group.metrics,
            num_cached_tokens=group.num_cached_tokens or 0,
            prompt_logprobs=self._prompt_logprobs(delta),
        )

    def _beam_outputs(self) -> list[CompletionOutput]:
        """The best hypotheses; for an aborted search, its live beams."""
        group, request = self._group, self._group.request
        lines: list[tuple[list[int], float, str | None, int | str | None]] = [
            (ended.token_ids, ended.cumulative_logprob, ended.finish_reason, ended.stop_reason)
            for ended in group.hypotheses
        ] or [
            (seq.token_ids[seq.prompt_len :], seq.cumulative_logprob, seq.status.finish_reason, seq.stop_reason)
            for seq in group.seqs
        ]
        outputs = []
        for index, (token_ids, cumulative_logprob, finish_reason, stop_reason) in enumerate(lines[: request.params.n]):
            detokenizer = _detokenizer_of(request, self._tokenizer)
            is_end_hidden = finish_reason == "stop" and not request.params.include_stop_str_in_output
            shown = token_ids[:-1] if is_end_hidden else token_ids
            text = "" if detokenizer is None else detokenizer.append(shown) + detokenizer.finish()
            outputs.append(
                CompletionOutput(
                    index, text, token_ids, cumulative_logprob, finish_reason=finish_reason, stop_reason=stop_reason
                )
            )
        return outputs

    def _prompt_logprobs(self, delta: bool) -> LogprobList[PositionLogprobs | None] | None:
        if self._group.request.params.prompt_logprobs is None or (delta and self._is_prompt_sent):
            return None
        self._is_prompt_sent = True
        rows = self._group.prompt_logprobs
        return LogprobList(rows, range(-1, len(rows)), self._tokenizer.decode_token)


class OutputProcessor:
    """The texts of all unfinished requests. `pace`: of streams; None: an output per step."""

    def __init__(self, tokenizer: Tokenizer, pace: StreamPace | None = None):
        self._tokenizer = tokenizer
        self._pace = pace or StreamPace()
        self._requests: dict[str, RequestText | RequestVector] = {}

    def add(self, group: SequenceGroup) -> None:
        self.adopt(group, self._new_state(group))

    def image(self, group: SequenceGroup) -> RequestTextImage:
        """The texts of a group as plain data."""
        state = self._requests[group.request_id]
        return state.image() if isinstance(state, RequestText) else RequestTextImage([], False)

    def restored(self, group: SequenceGroup, image: RequestTextImage) -> "RequestText | RequestVector":
        """The outputs of a group, for `adopt`. Raises HibernationError: see `SequenceText.restore`."""
        state = self._new_state(group)
        if isinstance(state, RequestText):
            state.restore(image)
        return state

    def adopt(self, group: SequenceGroup, state: "RequestText | RequestVector") -> None:
        """Make the group's outputs from now on."""
        self._requests[group.request_id] = state

    def _new_state(self, group: SequenceGroup) -> "RequestText | RequestVector":
        pooling = group.request.pooling
        if pooling is not None:
            return RequestVector(group, pooling)
        return RequestText(group, self._tokenizer, self._pace)

    def take(self, update: SequenceUpdate) -> str | None:
        """Apply a sequence's change by a step. Returns the stop string that ends the sequence now, or None."""
        return self._requests[update.group.request_id].take(update)

    def outputs(self, groups: Iterable[SequenceGroup]) -> list[EngineOutput]:
        """The outputs of the groups that a step has changed. Forgets finished groups."""
        outputs: list[EngineOutput] = []
        self._pace.begin_step(len(self._requests))
        for group in groups:
            output = self._requests[group.request_id].output()
            if output is not None:
                outputs.append(output)
            if output is not None and output.finished:
                del self._requests[group.request_id]
        return outputs

    def abort(self, group: SequenceGroup) -> EngineOutput:
        """The last output of an aborted group."""
        self._requests[group.request_id].abort()
        [output] = self.outputs([group])
        return output
