"""The prompts of Whisper's decoder: what it is to do with a sound, in its own words."""

import re

from lullm.audio.transcript.language import language_code
from lullm.errors import InvalidRequestError
from lullm.text.tokenizer import Tokenizer

_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_ENGLISH_VOCAB = 51_864
"""Tokens of the models that know English only; others have one more."""
_START, _NO_TIMESTAMPS, _END = "<|startoftranscript|>", "<|notimestamps|>", "<|endoftext|>"
_EARLIER = "<|startofprev|>"


class Words:
    """The tokens of one model's prompts. Raises InvalidRequestError: the model has no such words."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_model_len: int):
        vocabulary = tokenizer.get_vocab()
        self._tokenizer, self._vocab_size, self._max_model_len = tokenizer, vocab_size, max_model_len
        self._ids = {word: vocabulary[word] for word in vocabulary if word.startswith("<|")}
        self._special = frozenset(self._ids.values())
        self.is_english = vocab_size == _ENGLISH_VOCAB
        found = ((match[1], token_id) for word, token_id in self._ids.items() if (match := _LANGUAGE.fullmatch(word)))
        self._languages = {name: token_id for name, token_id in found if token_id < vocab_size}

    @property
    def language_ids(self) -> list[int]:
        """The tokens of all languages."""
        return list(self._languages.values())

    def language_of(self, token_id: int) -> str:
        """The language that a token names."""
        return next(name for name, own in self._languages.items() if own == token_id)

    def check(self, task: str, language: str | None, has_times: bool = False) -> str | None:
        """The code of a language that a caller names; None: it has to be heard.

        Raises InvalidRequestError: the model does not know the language, or not the task, or no times.
        """
        code = None if language is None else language_code(language)
        if self.is_english and (task != "transcribe" or code not in (None, "en")):
            raise InvalidRequestError("this model knows English only, and does not translate", "language")
        if code is not None and not self.is_english and code not in self._languages:
            known = ", ".join(sorted(self._languages))
            raise InvalidRequestError(f"language {language!r} is not one of {known}", "language")
        if has_times and self.first_time >= self._vocab_size:
            raise InvalidRequestError("this model has no tokens of times; take json or text", "response_format")
        return "en" if self.is_english else code

    def start(self) -> list[int]:
        """The prompt behind which a model of several languages names the one that it hears."""
        return [self._id(_START)]

    def prompt(self, task: str, language: str, earlier: str | None, has_times: bool = False) -> list[int]:
        """The whole prompt. `language`: its code. `earlier`: text before the sound, of which the end counts."""
        own = self.start()
        if not self.is_english:
            own += [self._languages[language], self._id(f"<|{task}|>")]
        if not has_times:
            own.append(self._id(_NO_TIMESTAMPS))
        if not earlier or not earlier.strip():
            return own
        token_ids = self._tokenizer.encode_as_text(" " + earlier.strip(), add_special_tokens=False)
        return [self._id(_EARLIER), *_last(token_ids, self._most_earlier), *own]

    def after(self, prompt: list[int], said: list[int]) -> list[int]:
        """The prompt with what was said before the sound, of which the end counts, behind its own earlier text.

        `said`: tokens with times, as Whisper was trained.
        """
        start = prompt.index(self._id(_START))
        own = prompt[1:start]
        last = _last(said, self._most_earlier - len(own))
        return [self._id(_EARLIER), *own, *last, *prompt[start:]] if last else prompt

    def room(self, prompt: list[int]) -> int:
        """The most tokens that may come behind a prompt."""
        return max(self._max_model_len - len(prompt), 1)

    @property
    def _most_earlier(self) -> int:
        return max(self._max_model_len // 2 - 1, 0)

    def silence_prompt(self, prompt: list[int]) -> list[int]:
        """The beginning of a prompt behind which the model says whether anybody speaks."""
        return prompt[: prompt.index(self._id(_START)) + 1]

    @property
    def silence_id(self) -> int:
        """The token that says that nobody speaks; its word has changed, its place has not."""
        return self._id(_NO_TIMESTAMPS) - 1

    @property
    def first_time(self) -> int:
        """The token of 0.00 s; those behind it are of each further 0.02 s."""
        return self._id(_NO_TIMESTAMPS) + 1

    @property
    def end_id(self) -> int:
        """The token that ends a text."""
        return self._id(_END)

    def text(self, token_ids: list[int]) -> str:
        """The text of tokens, without times."""
        return self._tokenizer.decode([token_id for token_id in token_ids if token_id < self.first_time])

    def is_text(self, token_id: int) -> bool:
        """Whether it is of the text, and neither a time nor another word of a prompt."""
        return token_id not in self._special

    def _id(self, word: str) -> int:
        if word not in self._ids:
            raise InvalidRequestError(f"this model's tokenizer has no word {word}; it is no Whisper's", "model")
        return self._ids[word]


def _last(token_ids: list[int], most: int) -> list[int]:
    return token_ids[len(token_ids) - min(most, len(token_ids)) :] if most > 0 else []
