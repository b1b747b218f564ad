"""The prompts of Whisper's decoder: what it is to do with a sound, in its own words."""

import re

from lullm.engine.client import EngineClient
from lullm.server.error import ApiError

_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_ENGLISH_VOCAB = 51_864
"""Tokens of the models that know English only; others have one more."""


class Words:
    """The tokens of one model's prompts. Raises ApiError 400: the model has no such words."""

    def __init__(self, engine: EngineClient):
        vocabulary = engine.tokenizer.get_vocab()
        self._engine = engine
        self._ids = {word: vocabulary[word] for word in vocabulary if word.startswith("<|")}
        self.is_english = engine.model_config.vocab_size == _ENGLISH_VOCAB
        found = ((match[1], token_id) for word, token_id in self._ids.items() if (match := _LANGUAGE.fullmatch(word)))
        self._languages = {name: token_id for name, token_id in found if token_id < engine.model_config.vocab_size}

    @property
    def language_ids(self) -> list[int]:
        """The tokens of all languages."""
        return list(self._languages.values())

    def language_of(self, token_id: int) -> str:
        """The language that a token names."""
        return next(name for name, own in self._languages.items() if own == token_id)

    def check(self, task: str, language: str | None) -> None:
        """Raises ApiError: the model does not know the language, or not the task."""
        if self.is_english and (task != "transcribe" or language not in (None, "en")):
            raise ApiError(400, "this model knows English only, and does not translate", param="language")
        if language is not None and not self.is_english and language.lower() not in self._languages:
            known = ", ".join(sorted(self._languages))
            raise ApiError(400, f"language {language!r} is not one of {known}", param="language")

    def start(self) -> list[int]:
        """The prompt behind which a model of several languages names the one that it hears."""
        return [self._id("<|startoftranscript|>")]

    def prompt(self, task: str, language: str, earlier: str | None) -> list[int]:
        """The whole prompt. `earlier`: text before the sound, of which the end counts."""
        own = self.start()
        if not self.is_english:
            own += [self._languages[language.lower()], self._id(f"<|{task}|>")]
        own.append(self._id("<|notimestamps|>"))
        if not earlier or not earlier.strip():
            return own
        token_ids = self._engine.tokenizer.encode_as_text(" " + earlier.strip(), add_special_tokens=False)
        most = max(self._engine.config.max_model_len // 2 - 1, 0)
        return [self._id("<|startofprev|>"), *token_ids[len(token_ids) - min(most, len(token_ids)) :], *own]

    def _id(self, word: str) -> int:
        if word not in self._ids:
            raise ApiError(400, f"this model's tokenizer has no word {word}; it is no Whisper's", param="model")
        return self._ids[word]
