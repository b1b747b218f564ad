"""Calls of scripts that were written for vLLM, with the import line changed."""

import argparse
import asyncio
import copy
import dataclasses
import json
import operator

import pytest
from tqdm import tqdm

from lullm import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    BeamSearchParams,
    EngineArgs,
    LLMEngine,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    TokensPrompt,
)
from lullm.errors import ConfigError, EngineAsleepError, InvalidRequestError, ModelLoadError, UnsupportedError
from lullm.types.vllm_argument import VLLM_NAMES

PROMPTS = ["Once upon a time", "17 + 25 ="]


@pytest.fixture(scope="module")
def llm():
    with LLM("demo", max_model_len=256, scheduling_policy="priority", trust_remote_code=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def plain_llm():
    """Of vLLM's defaults."""
    with LLM("demo", max_model_len=256, gpu_memory_utilization=0.05) as llm:
        yield llm


@pytest.fixture(scope="module")
def texts(llm):
    return [output.outputs[0].text for output in llm.generate(PROMPTS, SamplingParams(temperature=0), use_tqdm=False)]


def test_positional_params():
    assert SamplingParams(2, 0.1, 0.2, 1.1, 0.5, 0.9) == SamplingParams(
        n=2, presence_penalty=0.1, frequency_penalty=0.2, repetition_penalty=1.1, temperature=0.5, top_p=0.9
    )


def test_params_may_be_changed(llm, texts):
    params = llm.get_default_sampling_params()
    params.temperature = 0
    params.max_tokens = 3
    assert llm.get_default_sampling_params() != params, "a copy"
    for each in (params, params.clone(), copy.copy(params), copy.deepcopy(params)):
        [output] = llm.generate(PROMPTS[:1], each, use_tqdm=False)
        assert texts[0].startswith(output.outputs[0].text) and len(output.outputs[0].token_ids) == 3
    params.top_p = 7
    with pytest.raises(InvalidRequestError, match="top_p must be"):
        llm.generate(PROMPTS, params, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="top_p must be"):
        params.clone()


def test_a_request_keeps_the_params_it_came_with(llm, texts):
    params = SamplingParams(temperature=0)
    llm.enqueue(PROMPTS, params)
    params.max_tokens = 1
    assert [output.outputs[0].text for output in llm.wait_for_completion(use_tqdm=False)] == texts


def test_a_template_of_ones_own(llm):
    """As a file for the engine, and as a text for one call."""
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    params = SamplingParams(temperature=0)
    conversation = [{"role": "user", "content": PROMPTS[0]}]
    [expected] = llm.generate({"prompt_token_ids": llm.get_tokenizer().encode(PROMPTS[0], False)}, params, False)
    [found] = llm.chat(conversation, params, use_tqdm=False, chat_template=source)
    assert (found.prompt, found.outputs[0].text) == (PROMPTS[0], expected.outputs[0].text)
    [own] = llm.chat(conversation, params, use_tqdm=False)
    assert own.prompt != PROMPTS[0]
    with pytest.raises(InvalidRequestError, match="chat template is not valid"):
        llm.chat(conversation, params, use_tqdm=False, chat_template="{% if")


def test_a_template_of_a_file(tmp_path):
    (tmp_path / "mine.jinja").write_text("Say: {{ messages[0].content }}")
    for given in (str(tmp_path / "mine.jinja"), "Say: {{ messages[0].content }}"):
        with LLM.from_engine_args(EngineArgs("demo", max_model_len=64, chat_template=given)) as llm:
            [output] = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=1), use_tqdm=False)
            assert output.prompt == "Say: hi"
    with pytest.raises(ModelLoadError, match="chat_template is an empty text"):
        LLM(chat_template="")
    (tmp_path / "mine.jinja").write_text("\n")
    with pytest.raises(ModelLoadError, match="mine.jinja is empty"):
        LLM(chat_template=str(tmp_path / "mine.jinja"))


def test_enqueue(llm, texts):
    params = SamplingParams(temperature=0)
    ids = llm.enqueue(PROMPTS[0], params) + llm.enqueue(PROMPTS[1:], [params], priority=1)
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == ids
    assert [output.outputs[0].text for output in outputs] == texts
    assert llm.wait_for_completion(output_type=RequestOutput, use_tqdm=False) == []


def test_a_sleep_leaves_what_is_queued(llm, texts):
    llm.enqueue(PROMPTS, SamplingParams(temperature=0))
    llm.sleep(level=0)
    with pytest.raises(EngineAsleepError):
        llm.wait_for_completion(use_tqdm=False)
    llm.wake_up()
    assert [output.outputs[0].text for output in llm.wait_for_completion(use_tqdm=False)] == texts


def test_one_priority_for_all(llm):
    assert len(llm.generate(PROMPTS, SamplingParams(max_tokens=1), use_tqdm=False, priority=1)) == 2
    with pytest.raises(InvalidRequestError, match="3 priority for 2 prompts"):
        llm.generate(PROMPTS, use_tqdm=False, priority=[1, 2, 3])
    with pytest.raises(InvalidRequestError, match="priority must be int"):
        llm.generate(PROMPTS, use_tqdm=False, priority="high")


def test_a_priority_that_could_have_no_effect(plain_llm):
    """It was accepted, and all requests kept their order."""
    with pytest.raises(InvalidRequestError, match="scheduling_policy='priority'"):
        plain_llm.generate(PROMPTS, use_tqdm=False, priority=1)
    assert plain_llm.generate(PROMPTS[0], SamplingParams(max_tokens=1), use_tqdm=False, priority=0)


def test_any_seed(llm):
    """-1 was a seed like any other: the same "random" tokens came each time."""
    assert SamplingParams(seed=-1) == SamplingParams() and SamplingParams(seed=-2).seed == -2
    params = SamplingParams(seed=-1, temperature=5.0, max_tokens=20, ignore_eos=True)
    first, second = (llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0] for _ in range(2))
    assert first.token_ids != second.token_ids


def test_tokens_alone(llm, texts):
    """As lm-evaluation-harness and trainers ask; it was an unexpected keyword argument."""
    params = SamplingParams(temperature=0, detokenize=False, spaces_between_special_tokens=False, prompt_logprobs=1)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False, lora_request=None, tokenization_kwargs=None)
    assert [llm.get_tokenizer().decode(output.outputs[0].token_ids) for output in outputs] == texts
    assert all(output.outputs[0].text == "" and output.prompt_logprobs[1] for output in outputs)


def test_a_prefix_that_is_not_to_be_read(llm):
    prompt = PROMPTS[0] * 10
    params = [SamplingParams(max_tokens=1, skip_reading_prefix_cache=skips) for skips in (True, False, True)]
    cached = [llm.generate(prompt, each, use_tqdm=False)[0].num_cached_tokens for each in params]
    assert cached[0] == cached[2] == 0 < cached[1]


def test_vllms_other_arguments_of_calls(llm):
    messages = [{"role": "user", "content": PROMPTS[1]}]
    params = SamplingParams(temperature=0, max_tokens=3)
    plain = llm.chat(messages, params, use_tqdm=False)
    same = llm.chat(messages, params, use_tqdm=False, lora_request=None, chat_template_content_format="string")
    assert same[0].outputs == plain[0].outputs
    for call in (llm.chat, llm.generate, llm.embed, llm.encode, llm.enqueue, llm.beam_search):
        with pytest.raises(UnsupportedError, match="tokenization_kwargs=5 is not supported: give"):
            call(messages, tokenization_kwargs=5)
    with pytest.raises(TypeError, match="unexpected keyword argument 'whatever'"):
        llm.chat(messages, whatever=None)
    with pytest.raises(InvalidRequestError, match="chat_template_kwargs must be a dict, not int"):
        llm.chat(messages, chat_template_kwargs=5)
    prompt = {"prompt": PROMPTS[1], "multi_modal_data": None}
    assert llm.generate(prompt, params, use_tqdm=False)[0].prompt == PROMPTS[1]
    with pytest.raises(InvalidRequestError, match="takes text only"):
        llm.generate(prompt | {"multi_modal_data": {"image": 1}}, params, use_tqdm=False)


def test_a_bar_of_ones_own(llm, capsys):
    bars = []

    def make_bar(*args, **options):
        bars.append(tqdm(*args, **options))
        return bars[-1]

    llm.generate(PROMPTS, SamplingParams(max_tokens=1), use_tqdm=make_bar)
    assert [bar.n for bar in bars] == [2] and "Processed prompts" in capsys.readouterr().err


def test_beam_search(llm):
    outputs = llm.beam_search([{"prompt": PROMPTS[0]}], BeamSearchParams(beam_width=3, max_tokens=6))
    [best, *others] = outputs[0].sequences
    assert len(others) == 2 and best.cum_logprob >= others[0].cum_logprob >= others[1].cum_logprob
    own = llm.beam_search(PROMPTS[0], 3, max_tokens=6)[0]
    assert best.tokens == [*own.prompt_token_ids, *own.outputs[0].token_ids]
    assert best.text.startswith(PROMPTS[0]) and best.text.endswith(own.outputs[0].text)
    assert llm.beam_search(PROMPTS[0], beam_width=3, max_tokens=6)[0].outputs == own.outputs
    with pytest.raises(InvalidRequestError, match="beam_width"):
        llm.beam_search(PROMPTS)
    with pytest.raises(InvalidRequestError, match="nothing besides"):
        llm.beam_search(PROMPTS, BeamSearchParams(beam_width=3, max_tokens=6), max_tokens=9)


def test_outputs(llm):
    [output] = llm.generate(PROMPTS[0], SamplingParams(max_tokens=2), use_tqdm=False)
    metrics = output.metrics
    assert output.finished and output.outputs[0].finished()
    assert metrics.queued_ts == metrics.arrival_time <= metrics.scheduled_ts <= metrics.first_token_ts
    assert metrics.first_token_ts <= metrics.last_token_ts
    assert metrics.first_token_latency == pytest.approx(metrics.first_token_ts - metrics.arrival_time)


def test_apply_model(llm):
    assert llm.apply_model(lambda model: sum(p.numel() for p in model.parameters())) == [
        llm.collective_rpc(lambda worker: sum(p.numel() for p in worker.loaded.model.parameters()))[0]
    ]


def test_profile(llm, tmp_path):
    folder = tmp_path / "traces"
    with pytest.raises(InvalidRequestError, match="no profile"):
        llm.stop_profile()
    llm.start_profile(folder)
    with pytest.raises(InvalidRequestError, match="being recorded"):
        llm.start_profile(folder)
    llm.generate(PROMPTS[0], SamplingParams(max_tokens=1), use_tqdm=False)
    path = llm.stop_profile()
    assert path.parent == folder and json.loads(path.read_text())["traceEvents"]


def test_engine_args(texts):
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.add_argument("--num-prompts", type=int, default=2)
    parser.set_defaults(model="demo")
    args = EngineArgs.from_cli_args(parser.parse_args(["--max-model-len", "256", "--dtype", "half"]))
    args.dtype, args.disable_log_stats = "auto", True
    args.num_gpu_blocks_override = 40
    assert args.given == {
        "max_model_len": 256, "disable_log_stats": True, "num_gpu_blocks_override": 40,
    }  # fmt: skip
    for make in (lambda: LLM.from_engine_args(args), lambda: LLM(**dataclasses.asdict(args))):
        with make() as llm:
            assert llm.llm_engine.config.max_model_len == 256
            outputs = llm.generate(PROMPTS, SamplingParams(temperature=0), use_tqdm=False)
            assert [output.outputs[0].text for output in outputs] == texts
    with pytest.raises(UnsupportedError, match="lora_dtype='float32' is not supported: adapters have the type"):
        LLM.from_engine_args(EngineArgs(lora_dtype="float32"))
    with pytest.raises(ConfigError, match="max_model_len must be"):
        EngineArgs(max_model_len=-1).create_engine_config()


def test_llm_engine(texts):
    engine = LLMEngine.from_engine_args(EngineArgs(num_gpu_blocks_override=40))
    try:
        for number, prompt in enumerate([*PROMPTS, "x", "y"]):
            engine.add_request(str(number), prompt, SamplingParams(temperature=0), arrival_time=1.5, trace_headers=None)
        engine.abort_request(["2", "3"], wants_output=False)
        assert engine.get_num_unfinished_requests() == 2
        found = {}
        while engine.has_unfinished_requests():
            found |= {output.request_id: output.outputs[0].text for output in engine.step() if output.finished}
        assert [found[str(number)] for number in range(2)] == texts
    finally:
        engine.shutdown()


def test_async_engine(texts, tmp_path):
    async def use() -> None:
        engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(num_gpu_blocks_override=40))
        try:
            await engine.check_health()
            params = SamplingParams(temperature=0)
            await engine.start_profile(tmp_path)
            others = {"trace_headers": None, "data_parallel_rank": None, "tokenization_kwargs": {}, "prompt_text": "x"}
            stream = engine.generate(PROMPTS[0], sampling_params=params, request_id="a", priority=0, **others)
            assert [output async for output in stream][-1].outputs[0].text == texts[0]
            assert (await engine.stop_profile()).is_file()
            params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
            stream = engine.generate(PROMPTS[0], params, "b")
            assert not (await anext(stream)).finished and engine.get_num_unfinished_requests() == 1
            await engine.abort("b")
            last = [output async for output in stream][-1]
            assert last.finished and last.outputs[0].finish_reason == "abort"
            with pytest.raises(UnsupportedError, match="the one with the least work"):
                engine.generate(PROMPTS[0], params, "c", data_parallel_rank=1)
            await engine.abort(["b", "never"])
            assert engine.get_num_unfinished_requests() == 0
            assert (await engine.get_tokenizer()).encode("x")
        finally:
            await engine.shutdown()

    asyncio.run(use())


def test_an_answer_that_is_begun_goes_on(llm):
    """As vLLM's scripts ask for it; it could be asked for over HTTP only, or as a template's variable."""
    talk = [{"role": "user", "content": "What is 17 + 25?"}, {"role": "assistant", "content": "17 + 25 ="}]
    params = SamplingParams(temperature=0.0, max_tokens=8)
    [output] = llm.chat(talk, params, False, continue_final_message=True, add_generation_prompt=False)
    assert output.prompt.endswith("17 + 25 =") and output.outputs[0].text == " 42."
    [closed] = llm.chat(talk, params, False, add_generation_prompt=False)
    [opened] = llm.chat(talk, params, False)
    assert opened.prompt.startswith(closed.prompt) and len(opened.prompt) > len(closed.prompt) > len(output.prompt)
    with pytest.raises(InvalidRequestError, match="take one of them"):
        llm.chat(talk, params, continue_final_message=True, add_generation_prompt=True)


def test_a_search_without_beams_is_told_so(llm):
    with pytest.raises(InvalidRequestError, match="beam_width must be at least 1, got 0"):
        llm.beam_search("Once", beam_width=0)


def test_what_lullm_lacks_says_what_does_it(llm):
    """They were plain AttributeErrors and TypeErrors."""
    with pytest.raises(AttributeError, match="'LLM' object has no attribute 'start_weight_update': `update_weights`"):
        llm.start_weight_update()
    with pytest.raises(AttributeError, match="'LLMEngine' object has no attribute 'engine_core': `config`"):
        _ = llm.llm_engine.engine_core
    with pytest.raises(AttributeError, match="'LLM' object has no attribute 'renderer': `generate` takes the prompt"):
        _ = llm.renderer
    with pytest.raises(AttributeError, match="no attribute 'whatever'$"):
        _ = llm.whatever
    assert not hasattr(llm, "reset_mm_cache")
    with pytest.raises(UnsupportedError, match="profile_prefix='x' is not supported: name the folder"):
        llm.start_profile(profile_prefix="x")
    with pytest.raises(UnsupportedError, match="append these tokens to the prompt"):
        SamplingParams(trace_decode_token_ids=[1])


def test_no_advice_for_what_is_there(llm):
    """A name has advice where a class lacks it, so that one of lullm's own is never shadowed."""
    assert not {name for name in VLLM_NAMES if all(hasattr(kind, name) for kind in (LLM, LLMEngine, AsyncLLMEngine))}


def test_enqueue_chat(llm):
    messages = [{"role": "user", "content": PROMPTS[1]}]
    params = SamplingParams(temperature=0, max_tokens=3)
    plain = llm.chat(messages, params, use_tqdm=False, priority=1)
    [request_id] = llm.enqueue_chat(messages, params, use_tqdm=False, lora_request=None, priority=[2])
    [output] = llm.wait_for_completion(use_tqdm=False)
    assert output.request_id == request_id and output.outputs == plain[0].outputs
    assert llm.get_world_size() == llm.get_world_size(include_dp=False) == 1


def test_a_pause_ends_under_vllms_tag():
    """`wake_up(tags=["scheduling"])` was an unknown tag, and the engine stayed paused."""
    with LLM("demo", max_model_len=64, enable_sleep_mode=True) as llm:
        llm.sleep(level=0)
        llm.wake_up(tags=["scheduling"])
        assert not llm.is_sleeping()
        llm.sleep(level=2)
        llm.wake_up(tags=["weights"])
        llm.wake_up(tags=["scheduling"])
        assert llm.sleeping_tags == ("kv_cache",), "no memory has that name"
        llm.wake_up(tags=["kv_cache", "scheduling"])
        assert llm.generate("Once", SamplingParams(max_tokens=1), use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="sleep tags are"):
            llm.sleep(tags=["scheduling"])
        with pytest.raises(InvalidRequestError, match=r"as a list, such as \['weights'\]"):
            llm.wake_up(tags="weights")
        with pytest.raises(InvalidRequestError, match="int is none"):
            llm.wake_up(1)  # as in `sleep(1)`


def test_every_engine_pauses(llm):
    """vLLM's trainers call sleep(level=0) on engines without sleep mode; it was refused."""
    llm.sleep(level=0)
    assert llm.sleep_state == "paused"
    llm.wake_up()
    assert llm.generate("Once", SamplingParams(max_tokens=1), use_tqdm=False)
    with pytest.raises(ConfigError, match="sleep mode is off"):
        llm.sleep(level=1)


def test_names_of_vllm_stand_in_lullm_itself(llm):
    assert RequestOutputKind.DELTA.value == "delta"
    [output] = llm.generate(TokensPrompt(prompt_token_ids=[5, 6]), SamplingParams(max_tokens=1), use_tqdm=False)
    assert output.prompt_token_ids == [5, 6]


def test_sampling_parameters_of_the_engine():
    override = {"temperature": 0.0, "max_new_tokens": 3}
    with LLM("demo", max_model_len=64, generation_config="vllm", override_generation_config=override) as llm:
        [output] = llm.generate("Once upon a time", use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 3
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=3)


def test_all_log_probabilities():
    """-1 is all of them in vLLM, and over HTTP here; in Python it was out of range."""
    params = SamplingParams(max_tokens=1, logprobs=-1, prompt_logprobs=-1)
    with LLM("demo", max_model_len=64, max_logprobs=-1) as llm:
        [output] = llm.generate(PROMPTS[0], params, use_tqdm=False)
        vocab_size = llm.llm_engine.model_config.vocab_size
        assert len(output.outputs[0].logprobs[0]) == len(output.prompt_logprobs[1]) == vocab_size
        assert params.logprobs == -1, "a request has its own copy"
    with (
        LLM("demo", max_model_len=64) as llm,
        pytest.raises(InvalidRequestError, match="engine.s limit of 20"),
    ):
        llm.generate(PROMPTS[0], params, use_tqdm=False)


def test_arguments_of_older_scripts(llm):
    with pytest.raises(UnsupportedError, match="prompt_token_ids=.* is not supported: give prompts="):
        llm.generate(prompt_token_ids=[[1, 2]])
    with pytest.raises(UnsupportedError, match="use_beam_search=True is not supported: call LLM.beam_search"):
        SamplingParams(use_beam_search=True)


def test_the_tokenizer_as_scripts_use_it(llm):
    tokenizer, messages = llm.llm_engine.get_tokenizer(), [{"role": "user", "content": "hi"}]
    assert tokenizer is llm.get_tokenizer()
    one = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    options = {"add_generation_prompt": True}
    assert tokenizer.apply_chat_template([messages, messages], tokenize=False, **options) == [one, one]
    assert tokenizer.apply_chat_template([messages], **options) == [tokenizer.apply_chat_template(messages, **options)]
    assert tokenizer("hi").input_ids == tokenizer("hi")["input_ids"] == tokenizer.encode("hi")
    assert tokenizer(["hi"]).attention_mask == [[1] * len(tokenizer.encode("hi"))]


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("llm_engine.model_config.max_model_len", "it is `config.max_model_len` of the engine"),
        ("llm_engine.model_config.hf_config", "the fields of config.json"),
        ("llm_engine.cache_config", "`config` of the engine has all options"),
        ("model_config", "`llm_engine.config` has `max_model_len`"),
        ("preprocess_chat", "`generate` takes the prompt, `chat` the messages"),
    ],
)
def test_configs_of_vllm_say_where_it_stands(llm, path, advice):
    with pytest.raises(AttributeError, match=advice):
        operator.attrgetter(path)(llm)
