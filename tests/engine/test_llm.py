"""LLM and LLMEngine: the forms of prompts, outputs in order, text and stops, bad input that loses nothing."""

import pickle
import signal
from collections import UserDict, deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from kit.engine.parts import block_space_of, break_steps, executor_of, model_of, open_requests_of

from lullm import LLM, LLMEngine, LoRARequest, SamplingParams
from lullm.config.engine import EngineConfig
from lullm.errors import (
    CacheSizeError,
    ConfigError,
    EngineDeadError,
    InvalidRequestError,
    ModelLoadError,
    UnsupportedError,
)
from lullm.types.sampling_params import OutputKind

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(qwen3_folder):
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=128, max_num_seqs=16) as llm:
        yield llm


@pytest.fixture
def engine(llm):
    yield llm.llm_engine
    assert not llm.llm_engine.has_unfinished_requests()
    block_space_of(llm).check_conservation()
    assert llm.llm_engine.stats().num_used_blocks == 0
    assert open_requests_of(llm) == {}


def drain(engine: LLMEngine):
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def test_forms_of_a_prompt_give_the_same(llm, engine):
    ids = llm.get_tokenizer().encode("the quick fox")
    forms = ["the quick fox", ids, tuple(ids), {"prompt": "the quick fox"}, {"prompt_token_ids": ids}]
    outputs = llm.generate(forms, PARAMS, use_tqdm=False)
    assert len({tuple(o.outputs[0].token_ids) for o in outputs}) == 1
    assert all(o.prompt_token_ids == ids and o.finished for o in outputs)
    assert [o.prompt for o in outputs] == ["the quick fox", None, None, "the quick fox", None]
    assert llm.generate("the quick fox", PARAMS, use_tqdm=False)[0].outputs == outputs[0].outputs
    assert llm.generate(ids, PARAMS, use_tqdm=False)[0].outputs == outputs[0].outputs
    assert llm.generate([], PARAMS, use_tqdm=False) == []


def test_prompts_come_in_whatever_can_be_gone_through(llm, engine):
    texts = ["the quick fox", "hello"]
    expected = [output.outputs for output in llm.generate(texts, PARAMS, use_tqdm=False)]
    for prompts in (iter(texts), deque(texts), dict.fromkeys(texts).keys(), np.array(texts)):
        assert [output.outputs for output in llm.generate(prompts, PARAMS, use_tqdm=False)] == expected
    conversation = [{"role": "user", "content": "x"}]
    [expected] = llm.chat(conversation, PARAMS, use_tqdm=False)
    for messages in (iter(conversation), deque([conversation])):
        assert llm.chat(messages, PARAMS, use_tqdm=False)[0].outputs == expected.outputs
    for other in (b"abc", 5, UserDict(input_ids=[3]), np.array("hello")):
        with pytest.raises(InvalidRequestError, match="prompts must be a prompt or a list of them, not "):
            llm.generate(other, PARAMS, use_tqdm=False)


def test_a_salt_keeps_cached_prefixes_apart(llm, engine):
    ids = list(range(20, 60))
    outputs = [
        llm.generate({"prompt_token_ids": ids, "cache_salt": salt}, PARAMS, use_tqdm=False)[0]
        for salt in ("a", "a", "b", None, "b")
    ]
    assert [output.num_cached_tokens for output in outputs] == [0, 32, 0, 0, 32]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    for salt in ("", 3):
        with pytest.raises(InvalidRequestError, match="cache_salt"):
            llm.generate({"prompt_token_ids": ids, "cache_salt": salt}, PARAMS, use_tqdm=False)


def test_a_prompt_is_cut_on_demand(llm, engine):
    ids = list(range(20, 60))
    for num_kept, cut in ((8, ids[-8:]), (99, ids), (-1, ids)):
        [output] = llm.generate([ids], PARAMS.replace(truncate_prompt_tokens=num_kept), use_tqdm=False)
        assert output.prompt_token_ids == cut
    [output] = llm.generate([[7] * 500], PARAMS.replace(truncate_prompt_tokens=-1), use_tqdm=False)
    assert len(output.prompt_token_ids) == 128 - 12 and len(output.outputs[0].token_ids) == 12


def test_numbers_and_arrays_of_other_libraries(llm, engine):
    ids = llm.get_tokenizer().encode("the quick fox")
    expected = llm.generate(ids, PARAMS.replace(top_k=5), use_tqdm=False)[0].outputs
    params = PARAMS.replace(max_tokens=np.int64(12), top_k=np.int32(5), temperature=np.float32(0))
    assert type(params.max_tokens) is int and type(params.temperature) is float
    forms = [np.array(ids), torch.tensor(ids), {"prompt_token_ids": np.array(ids)}, [np.int64(i) for i in ids]]
    for form in forms:
        assert llm.generate(form, params, use_tqdm=False)[0].outputs == expected
    outputs = llm.generate(np.array([ids, ids]), params, use_tqdm=False)
    assert [output.outputs for output in outputs] == [expected, expected]
    assert SamplingParams(stop_token_ids=np.array([3, 4])).stop_token_ids == (3, 4)
    for wrong in (np.array([1.0]), [True, False], np.int64(1)):
        with pytest.raises(InvalidRequestError):
            llm.generate(wrong, PARAMS, use_tqdm=False)


def test_calls_from_several_threads_take_turns(llm, engine):
    prompts = [[f"hello {number}", "the fox"] for number in range(8)]
    alone = [llm.generate(one, PARAMS, use_tqdm=False) for one in prompts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda one: llm.generate(one, PARAMS, use_tqdm=False), prompts))
    assert [[o.outputs for o in outputs] for outputs in together] == [[o.outputs for o in outputs] for outputs in alone]


def interrupt_in_step(monkeypatch, engine, number: int, times: int = 1) -> None:
    """Ctrl-C comes, so often, while the model computes the n-th step from now."""
    launch, num_steps = executor_of(engine).launch_model, 0

    def interrupted(plan):
        nonlocal num_steps
        num_steps += 1
        for _ in range(times * (num_steps == number)):
            signal.raise_signal(signal.SIGINT)
        return launch(plan)

    monkeypatch.setattr(executor_of(engine), "launch_model", interrupted)


def test_a_call_within_a_step_is_refused(llm, engine, monkeypatch):
    """A handler of signals that called `generate` waited forever for the step that it had interrupted."""
    expected = llm.generate("hello", PARAMS, use_tqdm=False)[0].outputs
    launch, refused = executor_of(engine).launch_model, []

    def handle(number, frame):
        for call in (lambda: llm.generate("the fox", PARAMS, use_tqdm=False), llm.sleep):
            with pytest.raises(UnsupportedError, match="within one of its steps"):
                call()
            refused.append(call)

    def launched(plan):
        if not refused:
            signal.raise_signal(signal.SIGUSR1)
        return launch(plan)

    monkeypatch.setattr(executor_of(engine), "launch_model", launched)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert llm.generate("hello", PARAMS, use_tqdm=False)[0].outputs == expected
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 2 and llm.generate("hello", PARAMS, use_tqdm=False)[0].outputs == expected


def test_an_interrupt_leaves_a_usable_engine(llm, engine, monkeypatch):
    expected = llm.generate("hello", PARAMS, use_tqdm=False)[0].outputs
    interrupt_in_step(monkeypatch, engine, 3)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["hello", "the fox"], PARAMS, use_tqdm=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not engine.has_unfinished_requests()
    assert llm.generate("hello", PARAMS, use_tqdm=False)[0].outputs == expected


def test_an_interrupted_step_loses_no_output(llm, engine, monkeypatch):
    expected = llm.generate("hello", PARAMS, use_tqdm=False)[0].outputs
    interrupt_in_step(monkeypatch, engine, PARAMS.max_tokens)
    engine.add_request("x", "hello", PARAMS)
    with pytest.raises(KeyboardInterrupt):
        drain(engine)
    [last] = drain(engine)
    assert last.finished and last.outputs == expected


def test_a_second_interrupt_does_not_wait(qwen3_folder, monkeypatch):
    with LLM(str(qwen3_folder), max_model_len=64) as llm:
        interrupt_in_step(monkeypatch, llm.llm_engine, 2, times=2)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("hello", PARAMS, use_tqdm=False)
        with pytest.raises(EngineDeadError, match="KeyboardInterrupt"):
            llm.generate("hello", PARAMS, use_tqdm=False)


def test_outputs_are_in_order_and_pickle(llm, engine):
    params = [PARAMS.replace(max_tokens=m, logprobs=1) for m in (9, 1, 5)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [9, 1, 5]
    assert pickle.loads(pickle.dumps(outputs)) == outputs
    metrics = outputs[0].metrics
    assert metrics.arrival_time <= metrics.first_scheduled_time <= metrics.first_token_time
    assert metrics.first_token_time <= metrics.last_token_time <= metrics.finished_time
    assert metrics.time_in_queue >= 0


def test_progress_bar(llm, engine, capsys):
    llm.generate(["a", "b"], PARAMS)
    assert "2/2" in capsys.readouterr().err


def test_chat_renders_the_template(llm, engine):
    one = [{"role": "user", "content": "hello"}]
    two = [*one, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    [output] = llm.chat(one, PARAMS, use_tqdm=False)
    assert output.prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    both = llm.chat([one, two], PARAMS, use_tqdm=False)
    assert both[0].outputs == output.outputs
    assert both[1].prompt.count("<|im_start|>") == 4


def test_a_stop_string_ends_the_text(llm, engine):
    [free] = llm.generate("hello", PARAMS, use_tqdm=False)
    text = free.outputs[0].text
    stop = text[4:6]
    cut = text.index(stop)
    [output] = llm.generate("hello", PARAMS.replace(stop=stop), use_tqdm=False)
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == (text[:cut], "stop")
    assert output.outputs[0].stop_reason == stop
    [output] = llm.generate("hello", PARAMS.replace(stop=stop, include_stop_str_in_output=True), use_tqdm=False)
    assert output.outputs[0].text == text[: cut + len(stop)]
    [output] = llm.generate("hello", PARAMS.replace(stop=stop, min_tokens=12), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 12
    [output] = llm.generate("hello", PARAMS.replace(stop="never to be seen"), use_tqdm=False)
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == (text, "length")


def test_a_stop_token_ends_the_text_and_is_not_part_of_it(llm, engine):
    [free] = llm.generate("hello", PARAMS, use_tqdm=False)
    tokens = free.outputs[0].token_ids
    index = next(i for i in range(2, 12) if tokens[i] not in tokens[:i])
    stop = tokens[index]
    [output] = llm.generate("hello", PARAMS.replace(stop_token_ids=[stop]), use_tqdm=False)
    completion = output.outputs[0]
    assert (completion.token_ids, completion.stop_reason, completion.finish_reason) == (
        tokens[: index + 1],
        stop,
        "stop",
    )
    assert completion.text == llm.get_tokenizer().decode(tokens[:index])


def test_best_of_returns_the_best(llm, engine):
    params = SamplingParams(temperature=1.5, seed=3, max_tokens=6, ignore_eos=True, logprobs=0)
    [every] = llm.generate("hello", params.replace(n=6), use_tqdm=False)
    [best] = llm.generate("hello", params.replace(n=2, best_of=6), use_tqdm=False)
    ranked = sorted(every.outputs, key=lambda c: -c.cumulative_logprob / len(c.token_ids))
    assert [c.token_ids for c in best.outputs] == [c.token_ids for c in ranked[:2]]
    assert [c.index for c in best.outputs] == [0, 1]


def test_deltas_add_up_and_each_sequence_ends_once(llm, engine):
    params = SamplingParams(temperature=1.0, seed=1, n=3, max_tokens=20, stop=["e"], logprobs=0)
    [whole] = llm.generate("hello", params, use_tqdm=False)
    engine.add_request("d", "hello", params.replace(output_kind=OutputKind.DELTA))
    texts, tokens, ends = {}, {}, []
    outputs = drain(engine)
    for output in outputs:
        for c in output.outputs:
            texts[c.index] = texts.get(c.index, "") + c.text
            tokens[c.index] = tokens.get(c.index, []) + c.token_ids
            assert len(c.logprobs) == len(c.token_ids)
            if c.finish_reason:
                ends.append(c.index)
    assert [o.finished for o in outputs].count(True) == 1 and outputs[-1].finished
    assert sorted(ends) == [0, 1, 2]
    for c in whole.outputs:
        assert (texts[c.index], tokens[c.index]) == (c.text, c.token_ids)


def test_cumulative_outputs_grow(engine):
    engine.add_request("c", "hello", PARAMS)
    texts = [o.outputs[0].text for o in drain(engine)]
    assert len(texts) == 12
    assert all(b.startswith(a) for a, b in zip(texts, texts[1:], strict=False))


def test_running_requests_lose_their_kv_on_demand_and_no_token(llm, engine):
    [whole] = llm.generate("hello", PARAMS, use_tqdm=False)
    for resets in (False, True):
        engine.add_request("r", "hello", PARAMS)
        outputs = engine.step() + engine.step()
        num_used = engine.stats().num_used_blocks
        assert llm.reset_prefix_cache(reset_running_requests=resets) and num_used > 0
        assert engine.stats().num_used_blocks == (0 if resets else num_used)
        assert engine.stats().num_waiting == resets
        assert (outputs + drain(engine))[-1].outputs[0].token_ids == whole.outputs[0].token_ids
    with pytest.raises(UnsupportedError, match="reset_connector"):
        llm.reset_prefix_cache(reset_connector=True)


def test_abort_gives_one_terminal_output(engine):
    for request_id in ("a", "b"):
        engine.add_request(request_id, "hello", PARAMS.replace(max_tokens=100))
    engine.step()
    engine.abort_request("a")
    engine.abort_request("a")
    engine.abort_request("unknown")
    assert engine.stats().num_running == 1
    [terminal] = [o for o in engine.step() if o.finished]
    assert (terminal.request_id, terminal.outputs[0].finish_reason) == ("a", "abort")
    assert len(terminal.outputs[0].token_ids) == 1
    engine.abort_request("b")
    assert [o.request_id for o in drain(engine)] == ["b"]


def test_the_last_output_of_an_aborted_request_is_no_answer_to_another(llm, engine):
    """A call of `generate` names its requests 0, 1, ...: it took what step gave for an aborted one of that name."""
    [expected] = llm.generate("hello", PARAMS, use_tqdm=False)
    engine.add_request(expected.request_id, "hello", PARAMS.replace(max_tokens=100))
    for name in map(str, range(int(expected.request_id) + 1, int(expected.request_id) + 4)):
        engine.add_request(name, "hello", PARAMS.replace(max_tokens=100))
    engine.step()
    engine.abort_request(engine.unfinished_request_ids())
    for output in llm.generate(["hello"] * 3, PARAMS, use_tqdm=False):
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids


def test_default_parameters_come_from_the_model(llm, engine):
    assert llm.get_default_sampling_params() == llm.llm_engine.default_params
    engine.add_request("x", "hello")
    assert len(drain(engine)[-1].outputs[0].token_ids) <= 16


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ([1] * 128, {}, "prompt"),
        ([320], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([1.5], {}, "prompt"),
        ({"text": "x"}, {}, "prompt"),
        ({}, {}, "prompt"),
        ({"prompt": 3}, {}, "prompt"),
        (None, {}, "prompt"),
        ("x", {"logprobs": 21}, "logprobs"),
        ("x", {"prompt_logprobs": 21}, "prompt_logprobs"),
        ("x", {"stop_token_ids": [320]}, "stop_token_ids"),
        ("x", {"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ("x", {"logit_bias": {999: 1}}, "logit_bias"),
        ("x", {"n": 17}, "n"),
        ("x", {"best_of": 17}, "best_of"),
        ("x", {"best_of": 2, "output_kind": OutputKind.DELTA}, "best_of"),
    ],
)
def test_bad_requests_are_refused_and_lose_nothing(llm, engine, prompt, params, param):
    engine.add_request("good", "hello", PARAMS)
    engine.step()
    with pytest.raises(InvalidRequestError) as error:
        engine.add_request("bad", prompt, SamplingParams(**params))
    assert error.value.param == param
    assert [o.request_id for o in drain(engine) if o.finished] == ["good"]


def test_one_bad_prompt_starts_none(llm, engine):
    with pytest.raises(InvalidRequestError, match="empty"):
        llm.generate(["fine", ""], PARAMS, use_tqdm=False)
    for incomplete in ({}, {"prompt": None}):
        with pytest.raises(InvalidRequestError, match="needs 'prompt' or 'prompt_token_ids'; it has neither"):
            llm.generate(["fine", incomplete], PARAMS, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="max_num_seqs"):
        llm.generate(["fine", "x"], [PARAMS, PARAMS.replace(n=17)], use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="2 sampling_params for 1"):
        llm.generate(["x"], [PARAMS, PARAMS], use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="2 priority for 1 prompts"):
        llm.generate(["x"], PARAMS, use_tqdm=False, priority=[1, 2])
    with pytest.raises(InvalidRequestError):
        llm.generate(3, PARAMS, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="a list of messages"):
        llm.chat({"role": "user", "content": "x"}, PARAMS, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="lora_request must be LoRARequest"):
        llm.generate(["x"], PARAMS, use_tqdm=False, lora_request="x")
    with pytest.raises(InvalidRequestError, match="enable_lora=True"):
        llm.generate(["x"], PARAMS, use_tqdm=False, lora_request=LoRARequest("x", 1, "x"))


def test_a_used_id_is_refused(engine):
    engine.add_request("x", "hello", PARAMS)
    with pytest.raises(InvalidRequestError, match="already in use"):
        engine.add_request("x", "hello", PARAMS)
    drain(engine)
    engine.add_request("x", "hello", PARAMS)
    drain(engine)


def test_a_refused_call_leaves_the_requests_of_others_alone(llm, engine):
    [before] = llm.generate("hello", PARAMS, use_tqdm=False)
    taken = str(int(before.request_id) + 2)
    engine.add_request(taken, "hello", PARAMS)
    with pytest.raises(InvalidRequestError, match="already in use"):
        llm.generate(["hello", "the fox"], PARAMS, use_tqdm=False)
    assert engine.unfinished_request_ids() == [taken]
    assert drain(engine)[-1].outputs == before.outputs


def test_a_failed_step_kills_the_engine_with_its_cause(qwen3_folder, caplog):
    engine = LLMEngine(EngineConfig(model=str(qwen3_folder), max_model_len=64))
    engine.add_request("x", "hello", PARAMS)
    break_steps(engine)
    with pytest.raises(EngineDeadError, match="died in a step"):
        engine.step()
    with pytest.raises(EngineDeadError, match="died earlier"):
        engine.add_request("y", "hello", PARAMS)
    engine.shutdown()


def test_an_unusable_row_ends_its_request_alone(llm, engine, monkeypatch):
    model = model_of(engine)
    compute_logits = model.compute_logits

    def break_second_row(hidden, ops):
        logits = compute_logits(hidden, ops)
        logits[1:] = float("nan")
        return logits

    monkeypatch.setattr(model, "compute_logits", break_second_row)
    engine.add_request("fine", "hello", PARAMS)
    engine.add_request("stuck", "hello", PARAMS)
    ends = {o.request_id: o.outputs[0] for o in drain(engine) if o.finished}
    assert ends["fine"].finish_reason == "length"
    assert (ends["stuck"].finish_reason, ends["stuck"].token_ids) == ("abort", [])
    assert "no token" in ends["stuck"].stop_reason


def test_after_shutdown(qwen3_folder):
    llm = LLM(str(qwen3_folder), max_model_len=64)
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        llm.generate("x", use_tqdm=False)


def test_the_cache_must_hold_one_sequence(qwen3_folder):
    with pytest.raises(CacheSizeError, match="max_model_len=128"):
        LLM(str(qwen3_folder), max_model_len=128, num_gpu_blocks_override=7)
    with pytest.raises(
        CacheSizeError, match="no KV block fits.* raise kv_cache_memory_bytes or gpu_memory_utilization"
    ):
        LLM(str(qwen3_folder), kv_cache_memory_bytes=100)
    with LLM(str(qwen3_folder), num_gpu_blocks_override=7) as llm:
        assert llm.llm_engine.config.max_model_len == 7 * 16


def test_bad_model_folders(tmp_path, qwen3_folder):
    with pytest.raises(ModelLoadError, match="no model folder|huggingface|hub"):
        LLM(str(tmp_path / "nothing"))
    with pytest.raises(ModelLoadError, match="config.json"):
        LLM(str(tmp_path))
    with pytest.raises(ConfigError, match="sleep_dir"):
        LLM(str(qwen3_folder), enable_sleep_mode=True, sleep_dir=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="unknown option"):
        LLM(str(qwen3_folder), gpu_memory=3)
