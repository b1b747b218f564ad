"""AsyncLLMEngine: streams, disconnects, shutdown and failure; nobody waits forever."""

import asyncio
import threading

import pytest
from kit.engine.async_client import PARAMS, collect, on_thread, tokens, until
from kit.engine.parts import break_steps

from lullm import AsyncLLMEngine, EngineConfig
from lullm.engine.thread.mailbox import ThreadState
from lullm.errors import EngineDeadError, InvalidRequestError
from lullm.text.chat_template import ChatTemplate
from lullm.text.template.process import RenderProcess
from lullm.types.request import CallerRequest, Conversation


@pytest.fixture
def engine(qwen3_folder):
    engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), max_model_len=256, num_gpu_blocks_override=32))
    yield engine
    asyncio.run(engine.shutdown(drain=False))


def test_many_streams_over_a_small_pool(engine):
    async def main():
        alone = tokens(await collect(engine, "hello"))
        streams = await asyncio.gather(*(collect(engine, "hello", request_id=str(i)) for i in range(40)))
        assert all(tokens(s) == alone and s[-1].finished for s in streams)
        assert engine.stats().num_used_blocks == 0

    asyncio.run(main())


def test_leaving_a_stream_aborts_the_request(engine):
    async def main():
        stream = engine.generate("hello", PARAMS.replace(max_tokens=200), "x")
        await anext(stream)
        await stream.aclose()
        await until(lambda: engine.stats().num_running == 0)
        assert engine.stats().finished_total["abort"] == 1

        task = asyncio.ensure_future(collect(engine, "hello", PARAMS.replace(max_tokens=200)))
        await until(lambda: engine.stats().num_running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: engine.stats().num_used_blocks == 0)

    asyncio.run(main())


def test_bad_requests_raise_at_the_first_item(engine):
    async def main():
        with pytest.raises(InvalidRequestError):
            await collect(engine, "")
        with pytest.raises(InvalidRequestError):
            await collect(engine, "hello " * 5000)  # tokenized on a thread
        stream = engine.generate("hello", PARAMS, "x")
        await anext(stream)
        with pytest.raises(InvalidRequestError, match="already in use"):
            await collect(engine, "hello")
        assert len(tokens([o async for o in stream])) == 19, "the first one is not disturbed"

    asyncio.run(main())


def test_drain_lets_running_requests_end(engine):
    async def main():
        task = asyncio.ensure_future(collect(engine, "hello", PARAMS.replace(max_tokens=60)))
        await until(lambda: engine.stats().num_running == 1)
        await engine.shutdown(drain=True)
        assert len(tokens(await task)) == 60
        with pytest.raises(EngineDeadError, match="shut"):
            await collect(engine, "hello", request_id="late")
        await engine.shutdown()

    asyncio.run(main())


def test_shutdown_without_drain_ends_requests_as_aborted(engine):
    async def main():
        task = asyncio.ensure_future(collect(engine, "hello", PARAMS.replace(max_tokens=200)))
        await until(lambda: engine.stats().num_running == 1)
        await engine.shutdown(drain=False)
        assert (await task)[-1].outputs[0].finish_reason == "abort"

    asyncio.run(main())


def test_a_failed_step_fails_every_request(engine, caplog):
    async def main():
        tasks = [
            asyncio.ensure_future(collect(engine, "hello", PARAMS.replace(max_tokens=200), str(i))) for i in range(40)
        ]
        await until(lambda: engine.stats().num_running > 0)
        break_steps(engine)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, EngineDeadError) and "died" in str(result)
        with pytest.raises(EngineDeadError):
            engine.check_running()

    asyncio.run(main())


def test_calls_behind_the_one_that_ended_the_engine_fail_and_so_do_all_streams(engine, monkeypatch, caplog):
    began, release = threading.Event(), threading.Event()

    def block():
        began.set()
        assert release.wait(20)

    def fail(reset_running_requests):
        raise RuntimeError("a bug")

    async def main():
        stream = engine.generate("hello", PARAMS.replace(max_tokens=200), "x")
        await anext(stream)
        monkeypatch.setattr(engine._engine, "reset_prefix_cache", fail)
        busy = asyncio.ensure_future(on_thread(engine, block))
        await until(began.is_set)
        calls = [asyncio.ensure_future(engine.reset_prefix_cache()) for _ in range(3)]
        await asyncio.sleep(0)  # all three are sent
        release.set()
        async with asyncio.timeout(20):
            for call in calls:
                with pytest.raises(EngineDeadError, match="a bug"):
                    await call
            with pytest.raises(EngineDeadError):
                async for _ in stream:
                    pass
        await busy

    asyncio.run(main())


def test_what_iterates_weights_cannot_call_the_engine_by_way_of_its_loop(engine):
    """The engine's thread iterates: it waited for the call, and the call for it."""
    refused = []

    async def main():
        loop = asyncio.get_running_loop()
        request = await engine.prepare(CallerRequest("y", "hello", PARAMS))
        calls = {
            "generate": lambda: collect(engine, "hello"),
            "stream": lambda: anext(engine.stream(request)),
            "sleep": lambda: engine.sleep(0),
            "wake_up": engine.wake_up,
            "collective_rpc": lambda: engine.collective_rpc("weights_version"),
            "update_weights": lambda: engine.update_weights([]),
            "reset_prefix_cache": engine.reset_prefix_cache,
            "abort": lambda: engine.abort("x"),
            "shutdown": engine.shutdown,
        }

        async def started(call):
            return await call()

        begun = asyncio.Event()

        async def of_another_caller():
            await begun.wait()
            return await collect(engine, "hello", request_id="another")

        other = asyncio.create_task(of_another_caller())

        def weights():
            loop.call_soon_threadsafe(begun.set)
            for name, call in calls.items():
                with pytest.raises(InvalidRequestError, match="cannot call it; make them before"):
                    asyncio.run_coroutine_threadsafe(started(call), loop).result(timeout=20)
                refused.append(name)
            yield from ()

        assert await asyncio.wait_for(engine.update_weights(weights()), 60) == 0
        assert refused == list(calls)
        assert len(tokens(await asyncio.wait_for(other, 60))) == 20, "it did not iterate"
        assert len(tokens(await collect(engine, "hello"))) == 20

    asyncio.run(main())


def test_a_drain_takes_in_what_was_sent_before_it(engine):
    began, release = threading.Event(), threading.Event()

    def block():
        began.set()
        assert release.wait(20)

    async def main():
        busy = asyncio.ensure_future(on_thread(engine, block))
        await until(began.is_set)
        sent = asyncio.ensure_future(collect(engine, "hello"))
        await asyncio.sleep(0.01)  # it waits behind the call
        ending = asyncio.ensure_future(engine.shutdown(drain=True))
        await until(lambda: engine._threaded.mailbox.state is ThreadState.DRAINING)
        release.set()
        assert len(tokens(await sent)) == 20
        await ending
        await busy

    asyncio.run(main())


def test_long_prompts_are_worked_on_in_a_thread(engine, monkeypatch):
    threads = []

    def recorded(name):
        function = getattr(engine.input_processor, name)

        def call(*args, **options):
            threads.append(threading.current_thread())
            return function(*args, **options)

        monkeypatch.setattr(engine.input_processor, name, call)

    for name in ("process", "tokenize", "detokenize"):
        recorded(name)

    def talk(text):
        return Conversation([{"role": "user", "content": text}])

    async def main():
        for prompt in ("hello", talk("hello"), [5, 6, 7]):
            assert (await engine.prepare(CallerRequest("x", prompt, PARAMS))).prompt_token_ids
        assert await engine.detokenize(await engine.tokenize("hello")) == "hello"
        assert set(threads) == {threading.main_thread()} and len(threads) == 5
        threads.clear()
        for prompt in ("hello " * 1000, talk("hello " * 1000), [5] * 5000):
            with pytest.raises(InvalidRequestError, match="tokens"):
                await engine.prepare(CallerRequest("x", prompt, PARAMS))
        assert await engine.detokenize(await engine.tokenize("a" * 5000)) == "a" * 5000
        with pytest.raises(InvalidRequestError):
            await engine.prepare(CallerRequest("x", "hello", PARAMS.replace(bad_words=["z" * 1000] * 5, logprobs=99)))
        biased = CallerRequest("x", "hello", PARAMS.replace(logit_bias=dict.fromkeys(range(300), 1)))
        assert (await engine.prepare(biased)).params
        assert threading.main_thread() in threads and len(threads) == 7
        threads.clear()
        with pytest.raises(InvalidRequestError, match="logit_bias holds the token id"):
            await engine.prepare(
                CallerRequest("x", "hello", PARAMS.replace(logit_bias=dict.fromkeys(range(200000), 1)))
            )
        assert threading.main_thread() not in threads and len(threads) == 1

    asyncio.run(main())


def test_a_template_that_needs_another_process_waits_for_it_in_a_thread(engine, monkeypatch):
    threads = []
    render = RenderProcess.render

    def recorded(*args):
        threads.append(threading.current_thread())
        return render(*args)

    monkeypatch.setattr(RenderProcess, "render", recorded)
    template = ChatTemplate("{{ messages[0].content | center(20) }}", {})
    monkeypatch.setattr(engine.tokenizer, "chat_template", template)
    hello = Conversation([{"role": "user", "content": "hello"}])

    async def main():
        assert (await engine.prepare(CallerRequest("x", hello, PARAMS))).prompt == "hello".center(20)
        assert await engine.tokenize(hello) == await engine.tokenize("hello".center(20), add_special_tokens=False)
        assert threading.main_thread() not in threads and len(threads) == 2

    asyncio.run(main())
    template.close()


def test_a_prepared_request_is_streamed(engine):
    async def main():
        request = await engine.prepare(CallerRequest("x", Conversation([{"role": "user", "content": "hello"}]), PARAMS))
        outputs = [output async for output in engine.stream(request)]
        assert len(tokens(outputs)) == 20 and outputs[-1].prompt_token_ids == request.prompt_token_ids
        assert tokens(await collect(engine, request.prompt_token_ids)) == tokens(outputs)

    asyncio.run(main())
