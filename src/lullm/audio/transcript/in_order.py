"""InOrder: pieces of a sound are heard together, and their texts told in their order."""


class InOrder:
    """What can be told of `num_pieces` texts that grow together."""

    def __init__(self, num_pieces: int):
        self._waiting = [""] * num_pieces  # text of pieces behind the one that is being told
        self._ended = [False] * num_pieces
        self._now = 0
        self.text = ""
        """All that was told."""

    def add(self, number: int, text: str, has_ended: bool) -> str:
        """What can be told, now that a piece has more text, and maybe its end. Blanks in front of all are left out."""
        self._waiting[number] += text
        self._ended[number] = has_ended
        found = ""
        while self._now < len(self._waiting):
            found += self._waiting[self._now]
            self._waiting[self._now] = ""
            if not self._ended[self._now]:
                break
            self._now += 1
        if not self.text:
            found = found.lstrip()
        self.text += found
        return found
