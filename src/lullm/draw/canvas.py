"""Canvas: rectangles and short texts, written as a PNG.

A block map is a grid of rectangles. A plotting library would be a dependency of 30 MB, and would resample the grid. The
format needs only a header, one zlib stream and checksums (PNG specification, 3rd ed.).
"""

import struct
import zlib
from pathlib import Path

Color = tuple[int, int, int]
"""Red, green, blue, 0 to 255."""

BLACK: Color = (0, 0, 0)
WHITE: Color = (255, 255, 255)

# Five rows of three pixels for each character. A digit is a row; its bits are the pixels from left to right.
_GLYPHS = {
    "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644", "G": "34553", "H": "55755",
    "I": "72227", "J": "11152", "K": "55655", "L": "44447", "M": "57755", "N": "65555", "O": "25552", "P": "65644",
    "Q": "25573", "R": "65655", "S": "34216", "T": "72222", "U": "55557", "V": "55552", "W": "55775", "X": "55255",
    "Y": "55222", "Z": "71247", "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717",
    "6": "74757", "7": "71111", "8": "75757", "9": "75717", " ": "00000", "-": "00700", ".": "00002", ",": "00024",
    ":": "02020", "=": "07070", "%": "51245", "/": "11244", "(": "12221", ")": "42224", "+": "02720", "_": "00007",
    "?": "71202",
}  # fmt: skip
_SCALE = 2
TEXT_HEIGHT = 5 * _SCALE


def text_width(text: str) -> int:
    """The width of one line of text, in pixels."""
    return 4 * _SCALE * len(text)


class Canvas:
    """White pixels to draw on. Shapes are clipped at the edges."""

    def __init__(self, width: int, height: int):
        self.width = width
        self.height = height
        self._rows = [bytearray(b"\xff" * (3 * width)) for _ in range(height)]

    def fill(self, x: int, y: int, width: int, height: int, color: Color) -> None:
        """Draw a rectangle whose upper left pixel is (x, y)."""
        left, right = max(x, 0), min(x + width, self.width)
        if left < right:
            for row in self._rows[max(y, 0) : max(min(y + height, self.height), 0)]:
                row[3 * left : 3 * right] = bytes(color) * (right - left)

    def text(self, x: int, y: int, text: str, color: Color = BLACK) -> None:
        """Draw one line in capitals. A character without a glyph becomes '?'."""
        for number, character in enumerate(text.upper()):
            for row, bits in enumerate(_GLYPHS.get(character, _GLYPHS["?"])):
                for column in range(3):
                    if int(bits) & 4 >> column:
                        left = x + _SCALE * (4 * number + column)
                        self.fill(left, y + _SCALE * row, _SCALE, _SCALE, color)

    def encode(self) -> bytes:
        """The bytes of the PNG file."""
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)  # 8 bits a channel, RGB
        pixels = zlib.compress(b"".join(b"\0" + row for row in self._rows), 9)  # 0: rows are not filtered
        return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")

    def write(self, path: Path) -> None:
        """Raises OSError."""
        path.write_bytes(self.encode())


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
