"""The work that a request is before it enters, estimated in characters to tokenize."""

from lullm.text.template.meter import deep_size
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import Conversation, Input, TextPair
from lullm.types.sampling_params import SamplingParams

LONG_CHARS = 4096
"""Longer texts are tokenized in a thread. 4096 characters take 0.9 ms, the way to a thread 0.1 ms; a megabyte would
stop the event loop for half a second.
"""

_MESSAGE_CHARS = 10
"""Rendering a message takes 2 us beside its text: the time to tokenize 10 characters."""
_MUCH = 1_000_000


def num_param_chars(params: SamplingParams | PoolingParams) -> int:
    """The size of parameters that may be long, in characters: 200,000 biases took the event loop half a second."""
    if not isinstance(params, SamplingParams):
        return 0
    lists = (params.logit_bias, params.allowed_token_ids, params.stop_token_ids)
    return sum(map(len, params.bad_words or ())) + sum(len(each) for each in lists if each)


def num_chars(prompt: Input) -> int:
    """The size of a prompt, in characters to tokenize; a token id counts as one. Takes any object."""
    if isinstance(prompt, TextPair):
        return _len(prompt.query) + _len(prompt.document)
    if isinstance(prompt, Conversation):
        if not isinstance(prompt.messages, (list, tuple)):
            return 0
        num_option_chars = deep_size(prompt.options, _MUCH)[0] if prompt.options else 0
        return num_option_chars + sum(_MESSAGE_CHARS + _num_chars(message) for message in prompt.messages)
    if isinstance(prompt, dict):
        return max(_len(prompt.get("prompt")), _len(prompt.get("prompt_token_ids")))
    return _len(prompt)


def _num_chars(message: object) -> int:
    """The size of a message: its content, and its fields beside role and content."""
    if not isinstance(message, dict):
        return 0
    content = message.get("content")
    others = {name: value for name, value in message.items() if name not in ("role", "content")}
    num_other_chars = deep_size(others, _MUCH)[0] if others else 0
    if isinstance(content, (list, tuple)):
        return num_other_chars + sum(_len(part.get("text")) for part in content if isinstance(part, dict))
    return num_other_chars + _len(content)


def _len(value: object) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0
