"""Tokens beside a vocabulary: those that a tokenizer_config.json declares with ids, and those that it calls special."""

from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from lullm.errors import ModelLoadError

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def added_token(entry: dict[str, Any]) -> AddedToken:
    """The token of an object with `content` and flags. Raises KeyError, TypeError."""
    return AddedToken(entry["content"], **{flag: bool(entry.get(flag)) for flag in _FLAGS})


def add_declared(backend: Backend, declared: Any, file: str = "tokenizer_config.json") -> None:
    """Add the tokens of an object id -> token to `backend`, where they are missing. `file`: the object's file.

    Raises:
        ModelLoadError: the object is damaged, or an id is not the next one.
    """
    if not isinstance(declared, dict):
        raise ModelLoadError(f"{file}: added_tokens_decoder must be an object")
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    try:
        entries = sorted((int(key), value) for key, value in declared.items() if value["content"] not in known)
        for token_id, entry in entries:
            content = entry["content"]
            backend.add_tokens([added_token(entry)])
            if backend.token_to_id(content) != token_id:
                raise ModelLoadError(
                    f"{file} gives {content!r} the id {token_id}, but by the vocabulary it would be "
                    f"{backend.token_to_id(content)}: the two files do not belong together"
                )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelLoadError(f"{file}: the added tokens are damaged: {error!r}") from None


def surround(
    backend: Backend,
    before: Iterable[str | None],
    after: Iterable[str | None],
    has_bytes: bool,
    between: Sequence[str] | None = None,
) -> None:
    """Put these tokens around every text.

    Args:
        before, after: None stands for no token.
        has_bytes: the tokens are bytes, as GPT-2's.
        between: of an encoder: what stands between the texts of a pair. Two tokens (RoBERTa's) mean that nothing else
            tells the texts apart.
    """
    steps: list[Any] = [processors.ByteLevel(trim_offsets=False)] if has_bytes else []
    first, last = ([token for token in side if token] for side in (before, after))
    around = {token: backend.token_to_id(token) for token in (*first, *last)}
    if around:
        which = 0 if between is None or len(between) > 1 else 1
        behind = [f"$B:{which}", *(f"{each}:{which}" for each in last)]
        pair = {} if between is None else {"pair": [*first, "$A", *between, *behind]}
        tokens = list(around.items())
        steps.append(processors.TemplateProcessing(single=[*first, "$A", *last], **pair, special_tokens=tokens))
    if steps:
        backend.post_processor = processors.Sequence(steps)


def mark_special(backend: Backend, contents: Iterable[str]) -> None:
    """Mark tokens of the vocabulary that are named special as special, even if tokenizer.json does not; ids stay."""
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for content in dict.fromkeys(contents):
        if content not in special and backend.token_to_id(content) is not None:
            backend.add_special_tokens([AddedToken(content, special=True, normalized=False)])
