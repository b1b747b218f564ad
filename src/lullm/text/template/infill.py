"""Filling in the middle: the texts before and after a gap, in the form that a model was trained on.

The tokenizer's own tokens tell the form: Qwen Coder and CodeGemma, StarCoder, SantaCoder, CodeLlama, DeepSeek Coder.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lullm.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class InfillForm:
    """The tokens before the prefix, between prefix and suffix, and after the suffix; and one that ends the middle."""

    before: str
    between: str
    behind: str
    end: str | None = None


FORMS = (
    InfillForm("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|endoftext|>"),
    InfillForm("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|endoftext|>"),
    InfillForm("<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<|endoftext|>"),
    InfillForm("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"),
    InfillForm("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


@dataclass(frozen=True, slots=True)
class Infill:
    """A model's form, as ids. `end`: ids that end the middle, beside the model's own."""

    before: int
    between: int
    behind: int
    end: tuple[int, ...]

    def joined(self, start: list[int], prefix: list[int], suffix: list[int]) -> list[int]:
        """The prompt's ids; `start`: the first ids of every prompt of the model."""
        return [*start, self.before, *prefix, self.between, *suffix, self.behind]


def find_infill(token_to_id: Callable[[str], int | None]) -> Infill:
    """The form of the tokenizer whose ids are given. Raises InvalidRequestError: it has none."""
    for form in FORMS:
        before, between, behind = map(token_to_id, (form.before, form.between, form.behind))
        if before is not None and between is not None and behind is not None:
            end = None if form.end is None else token_to_id(form.end)
            return Infill(before, between, behind, () if end is None else (end,))
    message = "this model has no tokens for filling in the middle (suffix); send the prompt alone"
    raise InvalidRequestError(message, "suffix", "unsupported_field")
