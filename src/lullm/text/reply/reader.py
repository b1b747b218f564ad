"""Chooses the reader for a request's completions."""

from lullm.text.reply.event import ReplyReader
from lullm.text.reply.form_reader import FormReader
from lullm.types.request import GenerateRequest


def open_reader(request: GenerateRequest) -> ReplyReader:
    """A reader for one of the request's completions, each of which needs its own."""
    rules = request.reply
    if rules is None or not (rules.form.header or rules.tools or rules.form.thinking):
        return ReplyReader()
    return FormReader(rules)
