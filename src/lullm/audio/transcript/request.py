"""RequestWords: the prompt by which Voxtral writes down what is said, as mistral-common has it.

A sound of any length stands in one prompt, so there are no windows; the language may be left open.
"""

from lullm.audio.transcript.language import language_code
from lullm.errors import InvalidRequestError
from lullm.text.tokenizer import Tokenizer

_WORDS = ("<s>", "[INST]", "[BEGIN_AUDIO]", "[AUDIO]", "[/INST]", "[TRANSCRIBE]")


class RequestWords:
    """The tokens of one model's prompts. Raises InvalidRequestError: the model has no such words."""

    def __init__(self, tokenizer: Tokenizer):
        vocabulary = tokenizer.get_vocab()
        if lacking := [word for word in _WORDS if word not in vocabulary]:
            raise InvalidRequestError(
                f"this model has no {lacking[0]}, and does not write sounds down; ask it about them in a conversation "
                "(/v1/chat/completions)",
                "model",
            )
        self._tokenizer = tokenizer
        self._start = [vocabulary[word] for word in _WORDS[:-1]]
        self._end = vocabulary[_WORDS[-1]]

    def check(self, task: str, language: str | None, has_times: bool = False) -> str | None:
        """The code of a language that a caller names; None: the model finds it.

        Raises InvalidRequestError: it is no code of two letters; or the model is to translate, or to say when.
        """
        if task != "transcribe":
            raise InvalidRequestError("this model translates in conversations only (/v1/chat/completions)", "model")
        if has_times:
            raise InvalidRequestError("this model has no tokens of times; take json or text", "response_format")
        code = None if language is None else language_code(language)
        if code is not None and not (len(code) == 2 and code.isascii() and code.isalpha()):
            raise InvalidRequestError(f"language is a code of two letters such as en, not {language!r}", "language")
        return code

    def prompt(self, language: str | None, earlier: str | None) -> list[int]:
        """The whole prompt, with one token for the sound. Raises InvalidRequestError: there is a text before it."""
        if earlier is not None and earlier.strip():
            raise InvalidRequestError("this model hears a sound without a text before it; leave prompt out", "prompt")
        text = "" if language is None else f"lang:{language}"
        return [*self._start, *self._tokenizer.encode_as_text(text, add_special_tokens=False), self._end]
