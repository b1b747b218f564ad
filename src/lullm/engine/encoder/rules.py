"""RuleMaker: what a model's own files say of the tokens of one request's output."""

from collections.abc import Sequence

from lullm.config.generation import OutputRules
from lullm.errors import InvalidRequestError
from lullm.text.tokenizer import Tokenizer
from lullm.types.guided.rules import TimestampRules, TokenRules
from lullm.types.sampling_params import SamplingParams

NO_TIMESTAMPS = "<|notimestamps|>"
_NOT_WITH_TIMESTAMPS = ("structured_outputs", "allowed_token_ids", "beam_width")


class RuleMaker:
    """Makes the rules of one model's requests.

    Args:
        end_token_ids: the first ends a text.
    """

    def __init__(self, rules: OutputRules, tokenizer: Tokenizer, end_token_ids: Sequence[int], vocab_size: int):
        self._plain = TokenRules(rules.suppressed_ids, rules.begin_suppressed_ids)
        # A copied generation_config.json may be of another vocabulary, so the tokenizer's word goes first.
        named: int | None = tokenizer.backend.token_to_id(NO_TIMESTAMPS)
        self._no_timestamps_id = rules.no_timestamps_id if named is None else named
        timed = None
        if self._no_timestamps_id is not None and end_token_ids and self._no_timestamps_id + 1 < vocab_size:
            timed = TimestampRules(self._no_timestamps_id + 1, end_token_ids[0], rules.max_initial_timestamp)
        self._timed = TokenRules(rules.suppressed_ids, rules.begin_suppressed_ids, timed)

    def of(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> TokenRules:
        """The rules of a request. Raises InvalidRequestError: it asks for timestamps, and cannot have them."""
        if not params.timestamps:
            return self._plain
        if self._timed.timestamps is None:
            raise InvalidRequestError(
                f"timestamps: this model has none; they are for a Whisper whose tokenizer has {NO_TIMESTAMPS} and "
                "tokens of times behind it",
                "timestamps",
            )
        if prompt_token_ids[-1] == self._no_timestamps_id:
            raise InvalidRequestError(f"timestamps: the prompt ends with {NO_TIMESTAMPS}; leave it out", "timestamps")
        for name in _NOT_WITH_TIMESTAMPS:
            if getattr(params, name) is not None:
                raise InvalidRequestError(
                    f"{name} cannot be combined with timestamps, whose rules say which tokens may come; leave one out",
                    name,
                )
        return self._timed
