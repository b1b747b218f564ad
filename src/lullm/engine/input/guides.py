"""RequestGuides: the grammar that an output must keep to, from the form and the calls that its request wants."""

import re

from lullm.errors import InvalidRequestError
from lullm.text.guided.guides import GuideMaker
from lullm.text.reply.replies import Replies
from lullm.types.guided.params import Guide
from lullm.types.reply.rules import ReplyRules
from lullm.types.sampling_params import SamplingParams

_GRAMMAR_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")


class RequestGuides:
    """The guides of one engine's requests. Safe to call from several threads.

    Args:
        guides: make a guide of a grammar.
        replies: say how the model writes its calls.
    """

    def __init__(self, guides: GuideMaker, replies: Replies, eos_token_ids: tuple[int, ...]):
        self._guides, self._replies, self._eos_token_ids = guides, replies, eos_token_ids

    def of(self, params: SamplingParams, reply: ReplyRules | None, may_block: bool) -> Guide | None:
        """The guide of one output; None: it is free.

        Args:
            reply: how a conversation's answer is read; None: the prompt is none.

        Raises:
            InvalidRequestError: the form is wrong, the tools are, or they do not go together.
            WouldBlock: the grammar takes long to compile, and `may_block` is False.
        """
        form = params.structured_outputs
        if reply is None:
            return self._guides.make(form, may_block)
        if form is not None and reply.calls.choice == "required":
            self._guides.make(form, may_block)  # raises the errors of the caller's own grammar
            form = None  # a reply of calls alone has no text that would have this form
        try:
            outer = self._replies.grammar(reply, self._eos_token_ids, has_form=form is not None)
            if outer is not None and reply.tools:
                _check_calls_alone(params)
            return self._guides.make(form, may_block, outer)
        except InvalidRequestError as error:
            if not reply.tools or error.param != "structured_outputs":
                raise
            if form is not None:
                self._guides.make(form, may_block)  # raises the errors of the caller's own grammar
            raise InvalidRequestError(_tools_error(str(error)), "tools") from None


def _check_calls_alone(params: SamplingParams) -> None:
    """Raises InvalidRequestError: an option does not go with guided calls."""
    for name in ("beam_width", "allowed_token_ids"):
        if getattr(params, name) is not None:
            raise InvalidRequestError(f"{name} does not go with calls that have a grammar", name)


def _tools_error(message: str) -> str:
    """The error of a grammar that was made from tools, without its lines, which the caller has never seen."""
    first, _, _ = message.partition("\n")
    reason = _GRAMMAR_PLACE.sub("", first.removeprefix("structured_outputs: "))
    return f"tools: {reason}"
