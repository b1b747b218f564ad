"""The fields of a form with a sound, OpenAI's and vLLM's."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from lullm.server.audio.multipart import form_parts
from lullm.server.error import ApiError
from lullm.server.openai.schema import QueuedBody

Sound = Annotated[bytes, WithJsonSchema({"type": "string", "format": "binary"})]
_NUMBERS = frozenset(
    {"temperature", "stream", "seed", "max_completion_tokens", "top_p", "top_k", "min_p", "repetition_penalty"}
    | {"priority", "frequency_penalty", "presence_penalty", "use_beam_search"}
    | {"no_speech_threshold", "logprob_threshold", "compression_ratio_threshold"}
    | {"condition_on_previous_text"}
)
"""Fields whose text is read as JSON."""
_LISTS = ("timestamp_granularities",)
"""Fields that some clients write without the `[]` of a list."""


class TranslationBody(QueuedBody):
    """POST /v1/audio/translations. None: not given."""

    missing: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "include[]": (None, []),
        "chunking_strategy": (None, "auto"),
        "known_speaker_names[]": (None, []),
        "known_speaker_references[]": (None, []),
        "use_beam_search": (None, False),
    }

    file: Sound
    language: str | None = None
    prompt: str | None = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] | None = None
    timestamp_granularities: list[str] | None = Field(None, alias="timestamp_granularities[]")
    temperature: float | None = None
    stream: bool | None = None
    # vLLM's extensions
    seed: int | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    # lullm's
    no_speech_threshold: float | None = None
    logprob_threshold: float | None = None
    compression_ratio_threshold: float | None = None
    condition_on_previous_text: bool | None = None


class TranscriptionBody(TranslationBody):
    """POST /v1/audio/transcriptions. None: not given."""


def form_fields(content_type: str, body: bytes) -> dict[str, Any]:
    """The fields of a form by name. Raises ApiError 400: it is no form, or a field comes twice or is no text."""
    fields: dict[str, Any] = {}
    for part in form_parts(content_type, body):
        if part.name in fields and not part.name.endswith("[]"):
            raise ApiError(400, f"the field {part.name} comes twice", param=part.name, code="invalid_form")
        if part.name == "file":
            fields["file"] = part.value
            continue
        try:
            text = part.value.decode()
        except UnicodeDecodeError:
            raise ApiError(400, f"the field {part.name} is no text", param=part.name, code="invalid_form") from None
        if part.name.endswith("[]") or part.name in _LISTS:
            fields.setdefault(part.name.removesuffix("[]") + "[]", []).append(text)
        else:
            fields[part.name] = _value(part.name, text)
    return fields


def _value(name: str, text: str) -> Any:
    if name not in _NUMBERS:
        return text or None  # a form may have all fields, some of them empty
    try:
        return json.loads(text.strip().lower() or "null")
    except ValueError:
        return text  # the error says which type it must have
