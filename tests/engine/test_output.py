"""OutputProcessor: drawn tokens in, texts and outputs out. No engine; a token is a byte."""

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from lullm.engine.output import OutputProcessor
from lullm.engine.stream_pace import StreamPace
from lullm.sched.intake import SequenceUpdate
from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import Logprob, RequestMetrics
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import OutputKind, SamplingParams
from lullm.types.sequence import Hypothesis, Sequence, SequenceGroup, SequenceStatus
from lullm.types.step import DrawnToken

STOPPED, CAPPED, ABORTED = (
    SequenceStatus.FINISHED_STOPPED,
    SequenceStatus.FINISHED_LENGTH_CAPPED,
    SequenceStatus.FINISHED_ABORTED,
)


@pytest.fixture(scope="module")
def tokenizer():
    backend = Backend(models.BPE({char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


class Run:
    """One request that a test feeds letter by letter."""

    def __init__(self, tokenizer, **params):
        self.tokenizer = tokenizer
        self.processor = OutputProcessor(tokenizer)
        prompt_ids = tokenizer.encode("ask")
        request = GenerateRequest("r", "ask", prompt_ids, SamplingParams(**params), 0, 0.0)
        self.group = SequenceGroup(request, [], RequestMetrics(0.0))
        self.seq()
        self.processor.add(self.group)

    def seq(self):
        """One more sequence of the group."""
        prompt_ids = self.group.request.prompt_token_ids
        index = len(self.group.seqs)
        self.group.add(Sequence(index, index, list(prompt_ids), len(prompt_ids), SequenceStatus.RUNNING))
        return self.group.seqs[-1]

    def take(self, piece, index=0, end=None, logprobs=()):
        """Feed the tokens of a piece of text, the last of which may end the sequence. The stop string found, if any."""
        seq, found = self.group.seqs[index], None
        token_ids = self.tokenizer.encode(piece) if isinstance(piece, str) else piece
        for number, token_id in enumerate(token_ids):
            seq.token_ids.append(token_id)
            is_last = end is not None and number == len(token_ids) - 1
            if is_last:
                self.group.end(seq, end)
            drawn = DrawnToken(seq.seq_id, token_id, logprobs)
            found = self.processor.take(SequenceUpdate(self.group, seq, drawn, is_last))
        return found

    def end(self, status, index=0):
        """End a sequence without a token."""
        self.group.end(self.group.seqs[index], status)
        self.processor.take(SequenceUpdate(self.group, self.group.seqs[index], None, True))

    def output(self):
        """The output after a step; None if there is none."""
        outputs = self.processor.outputs([self.group])
        return outputs[0] if outputs else None

    def texts(self):
        return [completion.text for completion in self.output().outputs]


def test_cumulative_outputs_repeat_everything(tokenizer):
    run = Run(tokenizer)
    run.take("He")
    first = run.output()
    run.take("llo", end=CAPPED)
    last = run.output()
    assert (first.outputs[0].text, first.finished, first.outputs[0].finish_reason) == ("He", False, None)
    assert (last.outputs[0].text, last.finished, last.outputs[0].finish_reason) == ("Hello", True, "length")
    assert last.outputs[0].token_ids == tokenizer.encode("Hello") and last.prompt == "ask"


def test_deltas_add_up_to_the_text(tokenizer):
    run = Run(tokenizer, output_kind=OutputKind.DELTA)
    pieces, token_ids = [], []
    for piece, end in (("He", None), ("l", None), ("lo", CAPPED)):
        run.take(piece, end=end)
        [completion] = run.output().outputs
        pieces.append(completion.text)
        token_ids += completion.token_ids
    assert pieces == ["He", "l", "lo"] and token_ids == tokenizer.encode("Hello")


def test_a_delta_without_news_has_no_completion(tokenizer):
    run = Run(tokenizer, n=2, output_kind=OutputKind.DELTA)
    run.seq()
    run.take("a", 0)
    run.take("b", 1)
    assert [c.index for c in run.output().outputs] == [0, 1]
    run.take("c", 1)
    assert [(c.index, c.text) for c in run.output().outputs] == [(1, "c")]
    run.end(ABORTED, 0)
    assert [(c.index, c.text, c.finish_reason) for c in run.output().outputs] == [(0, "", "abort")], "the end is news"
    assert run.output().outputs == []


def test_an_unfinished_character_is_held_back_until_it_is_complete_or_the_end(tokenizer):
    euro = tokenizer.encode("€")
    assert len(euro) == 3
    run = Run(tokenizer)
    run.take(euro[:2])
    assert run.texts() == [""]
    run.take(euro[2:])
    assert run.texts() == ["€"]
    run.take(euro[:1], end=CAPPED)
    assert run.texts() == ["€\ufffd"]


@pytest.mark.parametrize(("include", "text"), [(False, "one "), (True, "one END")])
def test_a_stop_string_ends_the_sequence_and_is_shown_on_demand(tokenizer, include, text):
    run = Run(tokenizer, stop=["END", "no"], include_stop_str_in_output=include)
    assert run.take("one EN") is None
    assert run.texts() == ["one EN" if include else "one "], "a possible beginning is held back"
    assert run.take("D") == "END"
    run.group.end(run.group.seqs[0], STOPPED)  # as the step loop does
    [completion] = run.output().outputs
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (text, "stop", "END")


def test_tokens_without_a_text(tokenizer):
    for params in ({}, {"include_stop_str_in_output": True}, {"beam_width": 2}):
        run = Run(tokenizer, detokenize=False, **params)
        run.take("ab\xe4", end=STOPPED)
        [output] = run.output().outputs
        assert output.text == "" and output.token_ids == tokenizer.encode("ab\xe4"), params


def test_a_stop_string_before_min_tokens_does_not_count(tokenizer):
    run = Run(tokenizer, stop=["ab"], min_tokens=3)
    assert run.take("ab") is None and run.take("cab") == "ab"
    assert run.texts() == ["abc"]


def test_what_was_held_back_is_shown_at_the_end(tokenizer):
    run = Run(tokenizer, stop=["END"])
    run.take("the EN", end=CAPPED)
    assert run.texts() == ["the EN"]


@pytest.mark.parametrize(("include", "text"), [(False, "hi"), (True, "hi.")])
def test_the_token_that_ends_a_sequence_is_counted_and_shown_on_demand(tokenizer, include, text):
    run = Run(tokenizer, include_stop_str_in_output=include)
    run.take("hi.", end=STOPPED)
    [completion] = run.output().outputs
    assert completion.text == text and len(completion.token_ids) == 3
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)


def test_final_only(tokenizer):
    run = Run(tokenizer, output_kind=OutputKind.FINAL_ONLY)
    run.take("a")
    assert run.output() is None
    run.take("b", end=CAPPED)
    assert run.texts() == ["ab"]


def test_logprobs(tokenizer):
    a, b = tokenizer.encode("ab")
    ranked = ((a, -0.5, 2), (b, -0.25, 1))
    run = Run(tokenizer, logprobs=1, output_kind=OutputKind.DELTA)
    run.take([a], logprobs=ranked)
    [first] = run.output().outputs
    assert first.logprobs == [{a: Logprob(-0.5, 2, "a"), b: Logprob(-0.25, 1, "b")}]
    assert list(first.logprobs[0]) == [a, b], "the chosen token comes first"
    run.take([b], logprobs=((b, -0.25, 1),), end=CAPPED)
    [second] = run.output().outputs
    assert second.cumulative_logprob == -0.75 and len(second.logprobs) == 1
    silent = Run(tokenizer)
    silent.take([a], logprobs=ranked)
    [completion] = silent.output().outputs
    assert completion.logprobs is None and completion.cumulative_logprob is None


def test_prompt_logprobs_come_once_in_deltas(tokenizer):
    a, b = tokenizer.encode("ab")
    for kind, later in ((OutputKind.DELTA, None), (OutputKind.CUMULATIVE, 3)):
        run = Run(tokenizer, prompt_logprobs=0, output_kind=kind)
        run.group.prompt_logprobs.extend([((a, -1.0, 1),), ((b, -2.0, 1),)])
        run.take("x")
        rows = run.output().prompt_logprobs
        assert rows == [None, {a: Logprob(-1.0, 1, "a")}, {b: Logprob(-2.0, 1, "b")}]
        run.take("y")
        rows = run.output().prompt_logprobs
        assert (rows if rows is None else len(rows)) == later


def test_best_of_gives_the_likeliest_at_the_end(tokenizer):
    """By mean log-probability: a long line is not worse for its length."""
    run = Run(tokenizer, n=2, best_of=3)
    run.seq(), run.seq()
    [token_id] = tokenizer.encode("a")
    for index, (text, logprob) in enumerate((("aa", -2.0), ("aaaa", -1.0), ("a", -1.5))):
        assert run.output() is None
        run.take(text, index, CAPPED, logprobs=((token_id, logprob, 1),))
    assert [(c.index, c.text) for c in run.output().outputs] == [(0, "aaaa"), (1, "a")]


def test_beams(tokenizer):
    run = Run(tokenizer, beam_width=2, n=2)
    run.group.hypotheses = [
        Hypothesis(tokenizer.encode("yes."), -1.0, -0.3, "stop"),
        Hypothesis(tokenizer.encode("well"), -3.0, -0.7, "length", "kv_cache_full"),
    ]
    run.group.end(run.group.seqs[0], STOPPED)
    found = [(c.index, c.text, c.cumulative_logprob, c.finish_reason, c.stop_reason) for c in run.output().outputs]
    assert found == [(0, "yes", -1.0, "stop", None), (1, "well", -3.0, "length", "kv_cache_full")]


def test_an_abort_shows_what_there_is_and_is_forgotten(tokenizer):
    run = Run(tokenizer, stop=["END"])
    run.take("so E")
    run.group.end(run.group.seqs[0], ABORTED)
    output = run.processor.abort(run.group)
    assert output.finished and [(c.text, c.finish_reason) for c in output.outputs] == [("so E", "abort")]
    with pytest.raises(KeyError):
        run.output()


def paced(tokenizer, **params):
    """A request whose streams have an output each 20 ms, and the clock."""
    now = [100.0]
    run = Run(tokenizer, output_kind=OutputKind.DELTA, **params)
    run.processor = OutputProcessor(tokenizer, StreamPace(0.02, lambda: now[0]))
    run.processor.add(run.group)

    def texts(after_s):
        now[0] += after_s
        return [[each.text for each in output.outputs] for output in run.processor.outputs([run.group])]

    return run, texts


def test_tokens_of_a_pause_come_together(tokenizer):
    run, texts = paced(tokenizer)
    seen = []
    for letter in "abcdef":
        run.take(letter)
        seen.append(texts(after_s=0.009))
    assert seen == [[["a"]], [], [["bc"]], [], [["de"]], []], "the first at once, the others at 100.02, 100.04 ..."
    run.take("g", end=SequenceStatus.FINISHED_STOPPED)
    assert texts(after_s=0.0) == [["f"]], "the last at once"


def test_streams_that_began_at_different_times_have_their_outputs_together():
    now = [100.0]
    pace = StreamPace(0.02, lambda: now[0])
    for began in (0.0, 0.001, 0.007, 0.0099):
        now[0] = 100.0 + began
        pace.begin_step(4)
        assert pace.next_due() == pytest.approx(100.02)
    now[0] = 100.011
    pace.begin_step(4)
    assert pace.next_due() == pytest.approx(100.04), "half a pause at least"


def test_a_slow_model_has_an_output_per_step(tokenizer):
    run, texts = paced(tokenizer)
    for letter in "abc":
        run.take(letter)
        assert texts(after_s=0.05) == [[letter]]


def test_many_streams_have_longer_pauses():
    pace = StreamPace(0.02, lambda: 100.0)
    for num_streams, pause_s in ((1, 0.02), (64, 0.02), (256, 0.08)):
        pace.begin_step(num_streams)
        assert pause_s / 2 <= pace.next_due() - 100.0 <= 1.5 * pause_s
    always = StreamPace()
    always.begin_step(5)
    assert always.is_due(always.next_due())
