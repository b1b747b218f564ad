"""RequestLimits: what an engine can take of a prompt and of parameters."""

from collections.abc import Collection
from dataclasses import dataclass

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.errors import InvalidRequestError
from lullm.types.sampling_params import OutputKind, SamplingParams


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one engine and its model. All checks raise InvalidRequestError."""

    max_model_len: int
    vocab_size: int
    max_logprobs: int

    @classmethod
    def of(cls, config: ResolvedConfig, model: ModelConfig) -> "RequestLimits":
        """The limits of an engine that runs with `config`."""
        most_logprobs = model.vocab_size if config.max_logprobs == -1 else config.max_logprobs
        return cls(config.max_model_len, model.vocab_size, most_logprobs)

    def check_prompt(self, param: str, token_ids: list[int], num_drawn: int) -> None:
        """Check a prompt. `num_drawn`: tokens that must fit behind it."""
        if not token_ids:
            raise InvalidRequestError("the prompt is empty; it needs at least one token", param)
        if len(token_ids) > self.max_model_len - num_drawn:
            raise InvalidRequestError(
                # Agents recognise these words, and shorten their conversation.
                f"the prompt is too long: {len(token_ids)} tokens > {self.max_model_len - num_drawn}; this model's "
                f"maximum context length is {self.max_model_len} tokens (max_model_len)"
                f"{', one of which is generated' * num_drawn}",
                param,
                "context_length_exceeded",
            )
        self.check_ids(param, token_ids)

    def check_params(self, params: SamplingParams) -> None:
        """Check a request's own copy. -1 log-probabilities become the size of the vocabulary."""
        if params.output_kind is OutputKind.DELTA and (params.beam_width or params.num_sequences > params.n):
            name = "beam_width" if params.beam_width else "best_of"
            raise InvalidRequestError(f"{name} cannot be streamed: the best are known at the end only", name)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(params, name)
            if value == -1:
                value = self.vocab_size
                setattr(params, name, value)
            if value is not None and value > self.max_logprobs:
                raise InvalidRequestError(
                    f"{name}={value} is above the engine's limit of {self.max_logprobs} (max_logprobs)", name
                )
        self.check_ids("stop_token_ids", params.stop_token_ids or ())
        self.check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self.check_ids("logit_bias", params.logit_bias or ())

    def check_ids(self, name: str, ids: Collection[int]) -> None:
        """Check ids of tokens in the field `name`."""
        if not ids or (min(ids) >= 0 and max(ids) < self.vocab_size):
            return
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidRequestError(
                    f"{name} holds the token id {token_id}; the model has the ids 0 to {self.vocab_size - 1}", name
                )
