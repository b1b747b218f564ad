"""TextStream: a transcription as it is made, in OpenAI's events. Pieces of a sound are told in their order."""

from lullm.audio.transcript.in_order import InOrder
from lullm.server.error import ApiError
from lullm.server.sse import EVENTS, event
from lullm.types.outputs import RequestOutput


class TextStream:
    """The chunks of an answer about `num_pieces` pieces, which are computed together (`StreamForm`)."""

    media_type = EVENTS

    def __init__(self, num_pieces: int):
        self._texts = InOrder(num_pieces)

    def chunk(self, number: int, output: RequestOutput) -> bytes:
        """What can be told since the last output."""
        new = "".join(completion.text for completion in output.outputs)
        found = self._texts.add(number, new, output.finished)
        return event({"type": "transcript.text.delta", "delta": found}) if found else b""

    def end(self) -> bytes:
        """The whole text."""
        return event({"type": "transcript.text.done", "text": self._texts.text.strip()})

    def failure(self, error: ApiError) -> bytes:
        """The error, as an event."""
        return event(error.envelope())
