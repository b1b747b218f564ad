"""The client of `lullm bench serve`: what it reads out of streams, when it sends, and how many at a time."""

import asyncio
import contextlib
import json

import pytest

from lullm.cli.bench.load import arrivals, prompts_of, send_all
from lullm.cli.bench.stream import Sample, Target, ask
from lullm.cli.main import main
from lullm.errors import ConfigError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def event(data) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def text(piece: str) -> bytes:
    return event({"choices": [{"index": 0, "text": piece}]})


def chunked(*parts: bytes) -> bytes:
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(
        b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b"")
    )  # fmt: skip


@contextlib.asynccontextmanager
async def server(*pieces: bytes, pause_s: float = 0.0, seen: list | None = None):
    """A server that answers everything with `pieces`; the target."""

    handlers = []

    async def answer(reader, writer):
        handlers.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        if seen is not None:
            seen.append((head, json.loads(await reader.readexactly(length))))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        yield Target.of(f"http://127.0.0.1:{port}", "/v1/completions", "secret")
        await asyncio.gather(*handlers, return_exceptions=True)


def sample_of(*pieces: bytes, **options) -> Sample:
    async def main() -> Sample:
        async with server(*pieces, **options) as target:
            return await ask(target, {"prompt": "x"})

    return asyncio.run(main())


STREAM = text("a") + b": keep-alive\n\n" + text("b") + text("") + event(USAGE) + event(b"[DONE]")


@pytest.mark.parametrize(
    "pieces",
    [
        (chunked(STREAM),),
        tuple(chunked(*(STREAM[i : i + 7] for i in range(0, len(STREAM), 7)))[i : i + 11] for i in range(0, 3000, 11)),
        (HEAD + b"\r\n" + STREAM,),
        (chunked(STREAM.replace(b"\n", b"\r\n")),),
    ],
    ids=["chunked", "in small pieces", "until the end", "with carriage returns"],
)
def test_a_stream(pieces):
    sample = sample_of(*pieces)
    assert sample.error is None
    assert (sample.num_prompt, sample.num_output, len(sample.piece_times)) == (7, 3, 2)
    assert sample.sent < sample.piece_times[0] <= sample.piece_times[1] <= sample.ended


def test_pieces_of_a_chat():
    deltas = ({"role": "assistant", "content": ""}, {"reasoning": "hm"}, {"content": "a"}, {"tool_calls": [{}]}, {})
    events = b"".join(event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas)
    sample = sample_of(chunked(events + event(b"[DONE]")))
    assert len(sample.piece_times) == sample.num_output == 3, "without a usage the pieces are counted"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 429 Too Many\r\nContent-Length: 5\r\n\r\nlater", "429: later"),
        (chunked(text("a")), "broke off"),
        (chunked(text("a") + event({"error": {"message": "died"}})), "died"),
        (chunked(event(b"[DONE]")), "empty"),
        (chunked(event(b"{")), ""),
        (b"hello\r\n\r\n", "not HTTP"),
        (b"", "not HTTP"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nda", ""),
    ],
)
def test_what_fails_is_said(answer, error):
    found = sample_of(answer).error
    assert found and error in found


def test_nothing_listens():
    async def main() -> Sample:
        async with server() as target:
            pass
        return await ask(target, {})

    assert asyncio.run(main()).error


def test_the_request_and_its_times():
    seen: list = []
    sample = sample_of(HEAD + b"\r\n", text("a"), text("b"), event(b"[DONE]"), pause_s=0.02, seen=seen)
    [(head, body)] = seen
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:") and body == {"prompt": "x"}
    assert b"Authorization: Bearer secret" in head
    assert sample.first_s >= 0.015 and sample.gaps_s[0] >= 0.015
    assert sample.per_token_s == sample.gaps_s[0] and sample.e2e_s == pytest.approx(sample.first_s + sample.gaps_s[0])


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:y"])
def test_urls(url):
    with pytest.raises(ConfigError, match="is not a URL"):
        Target.of(url, "/v1/completions", None)
    target = Target.of("https://[::1]/api/v1/", "/v1/completions", None)
    assert (target.host, target.port, target.path) == ("::1", 443, "/api/v1/completions") and target.tls
    assert b"Host: [::1]:443\r\n" in target.head(1)


def test_no_more_than_the_concurrency_run_at_once():
    running, most, handlers = 0, 0, []

    async def main() -> list[Sample]:
        async def answer(reader, writer):
            nonlocal running, most
            handlers.append(asyncio.current_task())
            running += 1
            most = max(most, running)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.005)
            running -= 1
            writer.write(HEAD + b"\r\n" + STREAM)
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
            url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            samples = await send_all(Target.of(url, "/v1/completions", None), [{}] * 12, [0.0] * 12, 3)
            await asyncio.gather(*handlers)
            return samples

    samples = asyncio.run(main())
    assert most == 3 and len(samples) == 12 and all(sample.error is None for sample in samples)


def test_arrivals_are_a_poisson_process():
    times = arrivals(4000, 20.0, seed=1)
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert times[0] == 0 and mean == pytest.approx(0.05, rel=0.05) and deviation == pytest.approx(mean, rel=0.05)
    assert arrivals(4000, 20.0, seed=1) == times != arrivals(4000, 20.0, seed=2)
    assert arrivals(3, float("inf"), 0) == [0.0, 0.0, 0.0]


def test_prompts():
    first, second = prompts_of(2, 10, seed=3, num_shared=4)
    assert len(first.split()) == len(second.split()) == 10 and first != second
    assert first.split()[:4] == second.split()[:4] and prompts_of(2, 10, 3, 4) == [first, second]


def test_prompts_that_are_no_text(tmp_path, capsys):
    """It was a traceback."""
    (tmp_path / "prompts").write_bytes(b"\xff\xfe")
    assert main(["bench", "serve", "--model", "m", "--prompts", str(tmp_path / "prompts")]) == 2
    assert "is not text in UTF-8" in capsys.readouterr().err
