"""Bodies: with a length and in chunks, cut anywhere; what is not of the body is left."""

import pytest

from lullm.server.http.body import BodyReader
from lullm.server.http.head import MalformedError

CHUNKS = b"3\r\nabc\r\n0A;name=value\r\n0123456789\r\n1 \r\n\n\r\n0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize(
    ("length", "wire", "body"), [(5, b"abcde", b"abcde"), (0, b"", b""), (None, CHUNKS, b"abc0123456789\n")]
)
def test_cut_anywhere(length, wire, body):
    for step in (1, 2, 3, 7, len(wire) + 4 or 1):
        reader, data, found = BodyReader(length), bytearray(), b""
        for start in range(0, len(wire), step):
            assert not reader.is_complete
            data += wire[start : start + step]
            found += reader.take(data)
        assert reader.is_complete and found == body and not data


@pytest.mark.parametrize(("length", "wire"), [(2, b"ab"), (None, b"2\r\nab\r\n0\r\n\r\n")])
def test_the_next_request_is_left(length, wire):
    data = bytearray(wire + b"GET /")
    reader = BodyReader(length)
    assert reader.take(data) == b"ab" and reader.is_complete and data == b"GET /"
    assert reader.take(data) == b"" and data == b"GET /"


@pytest.mark.parametrize(
    "wire",
    [b"x\r\n", b"-1\r\n", b"0x1\r\n", b"\r\n", b"1\nab\r\n", b"1\r\nabc", b"1" * 16 + b"\r\n", b"1;" + b"x" * 1024],
)
def test_chunks_that_are_refused(wire):
    with pytest.raises(MalformedError):
        BodyReader(None).take(bytearray(wire))
