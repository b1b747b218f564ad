"""`lullm serve` in a process of its own: hostile bodies, broken connections, slow clients, and sleep calls among them.

Every answer is well-formed and none is a 5xx but 503 `engine_asleep`; the process lives, serves, and keeps its size.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kit.folder.checkpoint import write_checkpoint

from .body import ADMIN_PATHS, PATHS, hostile_body, valid_body
from .http_client import Connection, check_answer, request_bytes
from .target import Target

NUM_CLIENTS = 12
IDLE_S = 30.0
_HELD = re.compile(r"^lullm_(?:num_requests_(?:running|waiting|swapped)|kv_cache_usage_ratio)(?:\{.*\})? (\S+)", re.M)
QUESTION = {"prompt": "hello world", "max_tokens": 20, "temperature": 0, "ignore_eos": True}


class ServerTarget(Target):
    """A round is a crowd of clients, then a look at whether the server is as it was before."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        model = write_checkpoint(folder / "model", "qwen3", num_hidden_layers=2)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        self._log = open(folder / "log.txt", "w+")  # noqa: SIM115  # closed by `close`
        command = [
            sys.executable, "-c", "import sys; from lullm.cli.main import main; sys.exit(main(sys.argv[1:]))", "serve",
            "--model", str(model), "--port", "0", "--dtype", "float32", "--max-model-len", "256",
            "--num-gpu-blocks-override", "40", "--enable-sleep-mode", "--log-level", "warning",
            "--convert", "embed", "--served-model-name", "model",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment)
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert ready, "the server did not start"
        host, _, port = ready.split()[-1].removeprefix("http://").rpartition(":")
        self.address = host, int(port)
        self._answer = asyncio.run(self._question())

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def round(self, rng: random.Random) -> None:
        asyncio.run(self._round(rng))
        assert self._process.poll() is None, "the server has ended"

    async def _round(self, rng: random.Random) -> None:
        attacks: dict[Callable[[random.Random], Awaitable[None]], int] = {
            self._ask: 4, self._ask_amiss: 10, self._leave: 3, self._shut_half: 1, self._send_bytes: 2,
            self._dawdle: 1, self._call_admin: 3,
        }  # fmt: skip
        chosen = rng.choices(list(attacks), list(attacks.values()), k=NUM_CLIENTS * 2)
        waking = asyncio.create_task(self._wake_up_forever())
        async with asyncio.TaskGroup() as group:
            for attack in chosen:
                group.create_task(attack(random.Random(rng.getrandbits(32))))
        waking.cancel()
        await asyncio.gather(waking, return_exceptions=True)
        await self._send("POST", "/wake_up")
        assert await self._question() == self._answer, "the answer has changed"
        await self._until_idle()

    async def _wake_up_forever(self) -> None:
        """A hostile body may put the engine to sleep, and what sleeps keeps its requests."""
        while True:
            await asyncio.sleep(0.5)
            await self._send("POST", "/wake_up")

    async def _send(self, method: str, path: str, body: bytes = b"", **options: Any) -> tuple[int, Any]:
        async with Connection(self.address) as connection:
            connection.writer.write(request_bytes(method, path, body, **options))
            answer = check_answer(await connection.read_answer())
        self.counts[f"status {answer[0]}"] += 1
        return answer

    async def _question(self) -> str:
        status, answer = await self._send("POST", "/v1/completions", json.dumps(QUESTION).encode())
        assert status == 200, answer
        return answer["choices"][0]["text"]

    async def _until_idle(self) -> None:
        async with asyncio.timeout(IDLE_S):
            while True:
                _, text = await self._send("GET", "/metrics")
                held = _HELD.findall(text)
                assert len(held) == 4, text[:300]
                if not any(map(float, held)):
                    return
                await asyncio.sleep(0.05)

    # -- attacks ---------------------------------------------------------------------------------------------------

    async def _ask(self, rng: random.Random) -> None:
        path = rng.choice(PATHS)
        body = json.dumps(valid_body(rng, path)).encode()
        status, answer = await self._send("POST", path, body, chunked=rng.random() < 0.3)
        assert status in (200, 503), answer

    async def _ask_amiss(self, rng: random.Random) -> None:
        path = rng.choice((*PATHS, *PATHS, *ADMIN_PATHS))
        kind = rng.choice(["application/json"] * 5 + ["text/plain", "multipart/form-data", "", "\x01"])
        await self._send("POST", path, hostile_body(rng, path), content_type=kind, chunked=rng.random() < 0.2)

    async def _leave(self, rng: random.Random) -> None:
        """Go away while the answer is being written, in order or with a reset."""
        body = valid_body(rng, "/v1/completions") | {"stream": True, "max_tokens": 100, "n": rng.randrange(1, 5)}
        async with Connection(self.address) as connection:
            connection.writer.write(request_bytes("POST", "/v1/completions", json.dumps(body).encode()))
            with contextlib.suppress(ConnectionResetError, asyncio.IncompleteReadError):
                await connection.reader.readexactly(rng.randrange(1, 600))
            if rng.random() < 0.5:
                connection.reset()

    async def _shut_half(self, rng: random.Random) -> None:
        """Say that nothing more comes, and read: the answer is whole, or the server takes it for a farewell."""
        body = json.dumps(valid_body(rng, "/v1/completions")).encode()
        async with Connection(self.address) as connection:
            connection.writer.write(request_bytes("POST", "/v1/completions", body))
            connection.writer.write_eof()
            answer = await connection.read_answer()
            if answer:
                check_answer(answer)

    async def _send_bytes(self, rng: random.Random) -> None:
        """A request with some bytes replaced, or noise."""
        raw = bytearray(request_bytes("POST", rng.choice(PATHS), hostile_body(rng, PATHS[0])))
        for _ in range(rng.randrange(1, 20)):
            raw[rng.randrange(min(len(raw), 200))] = rng.randrange(256)
        async with Connection(self.address) as connection:
            connection.writer.write(bytes(raw) if rng.random() < 0.8 else rng.randbytes(300))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):  # it may wait for the rest of a body
                    answer = await connection.read_answer()
                    assert not answer or int(answer[9:12]) < 500 or b"engine_asleep" in answer, answer[:500]

    async def _dawdle(self, rng: random.Random) -> None:
        """A byte now and then."""
        raw = request_bytes("POST", "/v1/completions", json.dumps(valid_body(rng, "/v1/completions")).encode())
        async with Connection(self.address) as connection:
            for byte in raw[: rng.randrange(60)]:
                connection.writer.write(bytes([byte]))
                await asyncio.sleep(0.02)

    async def _call_admin(self, rng: random.Random) -> None:
        path = rng.choice(["/sleep", "/wake_up", "/pause", "/resume", "/reset_prefix_cache", "/collective_rpc"])
        body: dict[str, Any] = {}
        if path == "/sleep":
            body = {"level": rng.choice([0, 1, 1, 2]), "mode": rng.choice(["keep", "keep", "abort"])}
        elif path == "/collective_rpc":
            body = {"method": "reload_weights"}
        status, answer = await self._send("POST", path, json.dumps(body).encode())
        assert status in (200, 409, 503), answer
        if path in ("/sleep", "/pause"):  # what was kept goes on only after this
            await asyncio.sleep(rng.random() * 0.3)
            await self._send("POST", "/wake_up")
