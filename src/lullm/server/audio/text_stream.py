"""TextStream: a transcription as it is made, in OpenAI's events. Pieces of a sound are told in their order."""

from lullm.server.error import ApiError
from lullm.server.sse import EVENTS, event
from lullm.types.outputs import RequestOutput


class TextStream:
    """The chunks of an answer about `num_pieces` pieces, which are computed together (`StreamForm`)."""

    media_type = EVENTS

    def __init__(self, num_pieces: int):
        self._waiting = [""] * num_pieces  # text of pieces behind the one that is being told
        self._ended = [False] * num_pieces
        self._now = 0
        self._text = ""

    def chunk(self, number: int, output: RequestOutput) -> bytes:
        """What can be told since the last output."""
        for completion in output.outputs:
            self._waiting[number] += completion.text
        self._ended[number] = output.finished
        found = ""
        while self._now < len(self._waiting):
            found += self._waiting[self._now]
            self._waiting[self._now] = ""
            if not self._ended[self._now]:
                break
            self._now += 1
        if not self._text:
            found = found.lstrip()
        self._text += found
        return event({"type": "transcript.text.delta", "delta": found}) if found else b""

    def end(self) -> bytes:
        """The whole text."""
        return event({"type": "transcript.text.done", "text": self._text.strip()})

    def failure(self, error: ApiError) -> bytes:
        """The error, as an event."""
        return event(error.envelope())
