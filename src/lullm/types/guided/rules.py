"""TokenRules: what a model's own files say of the tokens of its outputs, whatever a request asks for."""

import msgspec


class TimestampRules(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where timestamps may stand among the tokens of an output, as Whisper decodes (https://arxiv.org/abs/2212.04356).

    A segment is a timestamp, text, and a timestamp that is later. The output begins with one, and the end of a segment
    and the beginning of the next stand beside each other. If all timestamps together are more likely than the best
    other token, one of them is taken.

    Args:
        first_id: of `<|0.00|>`; all tokens from it on are timestamps, and the one before it is `<|notimestamps|>`.
        end_id: of the end of the text; the tokens below it are text.
        max_initial: number of the latest timestamp with which an output may begin; None: any.
    """

    first_id: int
    end_id: int
    max_initial: int | None = None


class TokenRules(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rules of a model with an encoder.

    Args:
        suppressed_ids, begin_suppressed_ids: tokens that are forbidden, anywhere and as the first of an output.
        timestamps: None: the output has none.
    """

    suppressed_ids: tuple[int, ...] = ()
    begin_suppressed_ids: tuple[int, ...] = ()
    timestamps: TimestampRules | None = None


NO_RULES = TokenRules()
