"""A scripted engine behind the EngineClient protocol, and a server on a free port in a thread."""

import asyncio
import contextlib
import faulthandler
import functools
import json
import ssl
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.engine.caller.backlog import Backlog, Reader
from lullm.engine.input.processor import InputProcessor
from lullm.errors import EngineAsleepError, EngineDeadError, InvalidRequestError, SleepError, WakeUpError
from lullm.server.http_server import HttpServer
from lullm.server.listen.listener import Listener
from lullm.server.options import ServerOptions
from lullm.text.chat_template import ChatTemplate
from lullm.text.tokenizer import Tokenizer
from lullm.types.monitor.occupancy import (
    CACHED_CELL,
    FIRST_OWNER_CELL,
    SHARED_CELL,
    Occupancy,
    PoolOccupancy,
    RequestOccupancy,
)
from lullm.types.monitor.stats import EngineStats
from lullm.types.outputs import CompletionOutput, Logprob, PositionLogprobs, RequestMetrics, RequestOutput
from lullm.types.request import CallerRequest, GenerateRequest
from lullm.types.sampling_params import OutputKind, SamplingParams
from lullm.types.sleep import TAGS, SleepEvent, SleepForecast, SleepReport, WakeReport

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MAX_MODEL_LEN = 512
JOIN_S = 40
"""For a server to end: its own bounds (an engine in a long step, last answers, connections) sum up to 14 s."""


def byte_tokenizer() -> Tokenizer:
    """One token per byte: ids 0-255 in byte-level order, and <|end|>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    special_tokens = {"eos_token": "<|end|>"}
    return Tokenizer(backend, special_tokens, ChatTemplate(TEMPLATE, special_tokens))


def model_config(vocab_size: int, max_len: int = MAX_MODEL_LEN) -> ModelConfig:
    return ModelConfig.from_dict(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": vocab_size,
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": max_len,
        }
    )


class ScriptedEngine:
    """Says `script` (each completion after its number), one token per step, up to `max_tokens`.

    Stop strings end the text in front of them. A prompt with the word 'hold' waits after its second token until
    `release()`; with 'crash', the engine dies there. What happens to requests is recorded.

    It sleeps by keeping a list of tags; `failure`, when set, is what the next sleep or wake-up fails with.
    """

    def __init__(self, script: str = "the quick brown fox", **options: Any):
        options = {"served_model_name": "scripted", "max_model_len": MAX_MODEL_LEN} | options
        self.tokenizer = byte_tokenizer()
        self.model_config = model_config(self.tokenizer.vocab_size)
        config = EngineConfig(**{"model": "scripted"} | options)
        self.config = config.resolve(self.model_config)
        self.idle = config.idle
        self.default_params = SamplingParams(temperature=0.5)
        self.stated_params = frozenset({"temperature"})
        self.input_processor = InputProcessor(self.config, self.model_config, self.tokenizer, ())
        self.script = script
        self.seen: list[tuple[str, SamplingParams, int]] = []
        self.aborted: list[str] = []
        self.ended: list[str] = []
        self.is_dead = False
        self.shutdowns: list[bool] = []
        self.num_steps = 0
        self.sleeps: list[tuple[int, str, Any]] = []
        self.is_sleeping = False
        self.sleeping_tags: tuple[str, ...] = ()
        self.failure: Exception | None = None
        self.num_resets = 0
        self.num_looks = 0
        self.remote_calls: list[tuple[Any, ...]] = []
        self.keep_alives: list[float | None] = []
        self.idle_s = 0.0
        self.next_sleep: Any = None
        self.observers: list[Any] = []
        self.released = threading.Event()
        self._held = threading.Semaphore(0)

    def wait_held(self, num_requests: int = 1) -> None:
        """Block until so many requests hold."""
        for _ in range(num_requests):
            assert self._held.acquire(timeout=10), "no request came to its second token"

    def wait_aborted(self) -> None:
        """Block until a request has been given up, as that of a client which has gone, some 0.1 s later."""
        limit = time.monotonic() + 10
        while not self.aborted:
            assert time.monotonic() < limit, "the request of a client that has gone goes on"
            time.sleep(0.01)

    async def prepare(self, asked: CallerRequest) -> GenerateRequest:
        return self.input_processor.process(asked)

    async def tokenize(self, prompt: Any, add_special_tokens: bool = True) -> list[int]:
        return self.input_processor.tokenize(prompt, add_special_tokens)

    async def detokenize(self, token_ids: list[int]) -> str:
        return self.input_processor.detokenize(token_ids)

    async def stream(
        self, request: GenerateRequest, keep_alive: float | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        self.keep_alives.append(keep_alive)
        if self.is_sleeping:
            raise EngineAsleepError("the engine is asleep; call wake_up()")
        request_id, params, ids = request.request_id, request.params, request.prompt_token_ids
        self.seen.append((request_id, params, request.priority))
        text = self.tokenizer.decode(ids)
        metrics = RequestMetrics(arrival_time=time.monotonic())
        room = self.config.max_model_len - len(ids)
        answers = [self._answer(index, params, room) for index in range(params.n)]
        num_steps = max(map(len, answers))
        try:
            for step in range(num_steps):
                if self.is_dead:
                    raise EngineDeadError("step 2 failed")
                if step == 2 and "hold" in text:
                    self._held.release()
                    while not self.released.is_set() and not self.shutdowns:
                        await asyncio.sleep(0.002)
                    if self.shutdowns:
                        raise EngineDeadError("shut down")
                if step == 2 and "crash" in text:
                    self.is_dead = True
                    raise EngineDeadError("step 2 failed")
                self.num_steps += 1
                now = time.monotonic()
                metrics.first_scheduled_time = metrics.first_scheduled_time or now
                metrics.first_token_time = metrics.first_token_time or now
                metrics.last_token_time = metrics.finished_time = now
                last = step == num_steps - 1
                if params.output_kind is not OutputKind.FINAL_ONLY or last:
                    yield self._output(request_id, ids, params, answers, step, metrics)
                await asyncio.sleep(0)
            self.ended.append(request_id)
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted.append(request_id)
            raise

    async def run(self, request: GenerateRequest, reader: Reader, keep_alive: float | None = None) -> None:
        backlog = Backlog(request.params.output_kind is OutputKind.DELTA)
        poured = asyncio.ensure_future(backlog.pour(reader))
        try:
            async with contextlib.aclosing(self.stream(request, keep_alive)) as outputs:
                async for output in outputs:
                    backlog.put(output)
                    while not reader.is_ready and not poured.done():
                        await asyncio.sleep(0.002)
                    if poured.done():
                        break
            await poured
        finally:
            poured.cancel()

    def _answer(self, index: int, params: SamplingParams, room: int) -> list[int]:
        text = f"{index}:{self.script}"
        for stop in params.stop or ():
            text = text.partition(stop)[0]
        return self.tokenizer.encode(text)[: min(params.max_tokens or room, room)]

    def _output(
        self,
        request_id: str,
        ids: list[int],
        params: SamplingParams,
        answers: list[list[int]],
        step: int,
        metrics: RequestMetrics,
    ) -> RequestOutput:
        completions = []
        for index, answer in enumerate(answers):
            if params.output_kind is OutputKind.DELTA and step >= len(answer):
                continue
            news = answer[step : step + 1] if params.output_kind is OutputKind.DELTA else answer[: step + 1]
            ended = step >= len(answer) - 1
            is_cut = len(answer) in (params.max_tokens, self.config.max_model_len - len(ids))
            stops = [stop for stop in params.stop or () if stop in self.script and ended and not is_cut]
            completions.append(
                CompletionOutput(
                    index=index,
                    text=self.tokenizer.decode(news),
                    token_ids=news,
                    logprobs=None if params.logprobs is None else [position(i, params.logprobs) for i in news],
                    finish_reason=("length" if is_cut else "stop") if ended else None,
                    stop_reason=stops[0] if stops else None,
                )
            )
        rows = None
        if params.prompt_logprobs is not None:
            rows = [None, *(position(i, params.prompt_logprobs) for i in ids[1:])]
        finished = step == max(map(len, answers)) - 1
        return RequestOutput(request_id, None, ids, completions, finished, metrics, 3, rows)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=2,
            num_waiting=1,
            num_blocks=8,
            num_used_blocks=2,
            prefix_cache_queries_total=10,
            prefix_cache_hits_total=4,
            preemptions_total={("swap", "cheaper"): 5},
            prompt_tokens_total=100,
            generation_tokens_total=50,
            kv_cache_full_total=3,
            accepted_by_position_total=(7, 3),
            expert_balance=0.875,
            finished_total={"stop": len(self.ended), "abort": len(self.aborted)},
        )

    async def occupancy(self, max_cells: int) -> Occupancy:
        self.num_looks += 1
        pool = PoolOccupancy(
            8, 1, bytes([CACHED_CELL, FIRST_OWNER_CELL | SHARED_CELL, FIRST_OWNER_CELL, 0, 0, 0, 0, 0])
        )
        request = RequestOccupancy("chatcmpl-0123456789-7", "running", 20, 3, 2)
        return Occupancy(16, pool, PoolOccupancy(0, 1, b""), (request,), 1 << 20, 0.0001)

    def check_running(self) -> None:
        if self.is_dead or self.shutdowns:
            raise EngineDeadError("step 2 failed")

    async def sleep(
        self,
        level: int = 1,
        mode: str = "keep",
        tags: Any = None,
        backup: str = "auto",
        keep_prefix_cache: bool = False,
    ) -> SleepReport:
        self._fail("sleep")
        if level > 2:
            raise InvalidRequestError("sleep level must be 0, 1 or 2", "level")
        self.sleeps.append((level, mode, tags, backup, keep_prefix_cache))
        new = tuple(tag for tag in tags or TAGS if tag not in self.sleeping_tags) if level else ()
        self.sleeping_tags = tuple(tag for tag in TAGS if tag in (*self.sleeping_tags, *new))
        self.is_sleeping = True
        report = SleepReport(level, new, 1000 * len(new), 10 * len(new), 0.25)
        if new or level == 0:
            self.tell(SleepEvent("call", slept=report))
        return report

    async def wake_up(self, tags: Any = None) -> WakeReport:
        self._fail("wake_up")
        woken = tuple(tag for tag in self.sleeping_tags if tags is None or tag in tags)
        self.sleeping_tags = tuple(tag for tag in self.sleeping_tags if tag not in woken)
        self.is_sleeping = bool(self.sleeping_tags)
        report = WakeReport(woken, 100 * len(woken), 0.5)
        if woken:
            self.tell(SleepEvent("call", woke=report))
        return report

    async def explain_sleep(
        self, level: int = 1, tags: Any = None, backup: str = "auto", keep_prefix_cache: bool = False
    ) -> SleepForecast:
        if level > 2:
            raise InvalidRequestError("sleep level must be 0, 1 or 2", "level")
        self.remote_calls.append((level, tags, backup, keep_prefix_cache))
        return SleepForecast(level, tuple(tags or TAGS), 2000, 20, 0.25, 0.5)

    async def pause_generation(self, mode: str = "abort", clear_cache: bool = True) -> None:
        await self.sleep(0, mode)
        self.num_resets += clear_cache

    async def resume_generation(self) -> None:
        if self.sleeping_tags:
            raise EngineAsleepError("not only paused; call wake_up()")
        await self.wake_up()

    num_replicas = 1
    remote_methods = frozenset({"modified_weights", "reload_weights", "resident_bytes", "weights_version"})

    async def collective_rpc(self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None) -> list[Any]:
        self._fail()
        self.remote_calls.append((method, timeout, args, kwargs))
        return [7]

    @property
    def sleep_state(self) -> str:
        if len(self.sleeping_tags) == 1:
            return "partial"
        return "weights_offloaded" if self.sleeping_tags else "paused" if self.is_sleeping else "awake"

    def observe_sleep(self, observer: Any) -> None:
        self.observers.append(observer)

    def tell(self, event: SleepEvent) -> None:
        """What the observers hear."""
        for observer in self.observers:
            observer(event)

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        self.num_resets += 1
        return True

    def _fail(self, failed: Any = None) -> None:
        failure, self.failure = self.failure, None
        if failure is None:
            return
        if failed is not None and isinstance(failure, (SleepError, WakeUpError)):
            self.tell(SleepEvent("call", failed=failed))
        raise failure

    async def shutdown(self, drain: bool = True) -> None:
        self.shutdowns.append(drain)


def position(token_id: int, num: int) -> PositionLogprobs:
    """The chosen token second, id 7 best, then 8, 9, ...; one impossible."""
    entries = {token_id: Logprob(-1.5, 2)}
    for rank in range(1, num + 1):
        if rank != 2:
            entries[6 + rank] = Logprob(-0.5 if rank == 1 else float("-inf"), rank)
    return entries


class RunningServer:
    """An HttpServer in a thread, on a port of the system's choice."""

    def __init__(self, engine: Any, **options: Any):
        self.engine = engine
        self.options = ServerOptions(**({} if "uds" in options else {"port": 0}) | options)
        self._ready = threading.Event()
        self._listener = Listener(self.options)
        self.url = self._listener.url
        self.admin_url = self._listener.admin_url
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="server")
        self._thread.start()
        assert self._ready.wait(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with self._listener:
            self._server = HttpServer(self.engine, self.options, self._listener)
            await self._server.serve(self._on_ready)

    def _on_ready(self, url: str) -> None:
        assert url == self.url
        self._ready.set()

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def signal(self) -> None:
        """What SIGTERM does in a process."""
        self._loop.call_soon_threadsafe(self._server.stop)

    def join(self, timeout_s: float = JOIN_S) -> None:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            faulthandler.dump_traceback(file=sys.__stderr__)  # what it waits for
            pytest.fail("the server did not end")

    def stop(self) -> None:
        if self._thread.is_alive():
            self.signal()
            self.signal()
            self.join()

    def http(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=headers, timeout=20)

    def openai(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=20)


@pytest.fixture(autouse=True, scope="session")
def _authorities_are_read_once() -> Iterator[None]:
    """Each client of httpx, also those of openai and anthropic, read 150 certificates for its plain HTTP: 0.05 s."""
    usual = functools.cache(httpx.create_ssl_context)

    def create(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        told = usual if verify is True and cert is None else httpx.create_ssl_context
        return told(verify, cert, trust_env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", create)
        yield


def _starting() -> Iterator[Callable[..., RunningServer]]:
    """`start(engine, **server_options)`; every server is stopped at the end."""
    servers: list[RunningServer] = []

    def start_server(engine: Any, **options: Any) -> RunningServer:
        servers.append(RunningServer(engine, **options))
        return servers[-1]

    yield start_server
    for server in servers:
        server.stop()


class ReplyingEngine(ScriptedEngine):
    """Says one of `replies` after the other, and records the requests and their prompts."""

    def __init__(self, template: str, *replies: str, **options: Any):
        super().__init__()
        self.replies = list(replies)
        self.prompts: list[str] = []
        self.requests: list[GenerateRequest] = []
        chat_template = ChatTemplate(template, {})
        chat_template.try_out()
        self.tokenizer = Tokenizer(self.tokenizer.backend, {"eos_token": "<|end|>"}, chat_template)
        self.model_config = model_config(self.tokenizer.vocab_size, 8192)
        self.config = EngineConfig(served_model_name="scripted", max_model_len=8192, **options).resolve(
            self.model_config
        )
        end_ids = (self.tokenizer.eos_token_id,)
        self.input_processor = InputProcessor(self.config, self.model_config, self.tokenizer, end_ids)

    async def prepare(self, asked: CallerRequest) -> GenerateRequest:
        request = await super().prepare(asked)
        self.prompts.append(request.prompt)
        self.requests.append(request)
        return request

    def _answer(self, index: int, params: SamplingParams, room: int) -> list[int]:
        reply = self.replies.pop(0)
        self.replies += [reply] * (index + 1 < params.n)
        return self.tokenizer.encode(reply)[: params.max_tokens or room] or [self.tokenizer.eos_token_id]


start = pytest.fixture(_starting, name="start")
start_for_module = pytest.fixture(_starting, name="start_for_module", scope="module")


@pytest.fixture(scope="session")
def scripted() -> type[ScriptedEngine]:
    return ScriptedEngine


@pytest.fixture(scope="session")
def replying() -> type[ReplyingEngine]:
    return ReplyingEngine


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One server with a scripted engine for a whole module."""
    running = RunningServer(ScriptedEngine())
    yield running
    running.stop()


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client


@pytest.fixture(scope="session")
def read_events() -> Callable[[httpx.Response], list[Any]]:
    """The data of a stream's events; '[DONE]' as it is."""

    def read(response: httpx.Response) -> list[Any]:
        data = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
        return [item if item == "[DONE]" else json.loads(item) for item in data]

    return read
