"""Prompts with sounds in a whole engine: transformers' tokens, whatever else the engine does meanwhile."""

import base64
import json
from functools import partial

import numpy as np
import pytest
from kit.audio.checkpoint import sound
from kit.audio.file import wav
from kit.audio.hearing import AUDIO_ID, write_qwen2_audio, write_voxtral
from kit.engine.parts import engine_of
from kit.engine.scenes import GUESSING, WAYS, asleep_meanwhile, check_golden, golden_preempted, see_no_rows, tiles_sent
from kit.file_server import file_server
from kit.model.lora import merged, write_adapter
from kit.worker.threads import use_threads
from safetensors.torch import load_file

from lullm import LLM, LoRARequest, SamplingParams
from lullm.errors import ConfigError, InvalidRequestError

OPTIONS = {"dtype": "float32", "max_model_len": 256, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
NUM_TOKENS = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
TEXTS = (
    ("hello world, the quick", ()),
    ("USER: <sound>\nwhat fox? ASSISTANT:", (0,)),
    ("<sound> jumps over <sound>the lazy dog", (1, 2)),
    ("a b c <sound><sound>", (0, 0)),
)
SECONDS = {"qwen2": (0.73, 1.0, 0.34, 0.73), "voxtral": (0.73, 2.4, 1.0, 0.73)}
WRITERS = {"qwen2": write_qwen2_audio, "voxtral": write_voxtral}


@pytest.fixture(scope="module", params=WRITERS)
def checkpoint(request, tmp_path_factory):
    return WRITERS[request.param](tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def sounds(checkpoint):
    lengths = SECONDS["voxtral" if checkpoint.is_voxtral else "qwen2"]
    return [sound(number, seconds) for number, seconds in enumerate(lengths)]


@pytest.fixture(scope="module")
def expected(checkpoint, sounds):
    return [
        checkpoint.continued(spelled(text, checkpoint), [sounds[n] for n in heard], NUM_TOKENS) for text, heard in TEXTS
    ]


def spelled(text, checkpoint):
    return text.replace("<sound>", checkpoint.word)


@pytest.fixture(scope="module")
def prompts(checkpoint, sounds):
    return [
        {"prompt": spelled(text, checkpoint), "multi_modal_data": {"audio": [(sounds[n], 16000) for n in heard]}}
        for text, heard in TEXTS
    ]


OWN_WAYS = WAYS | {"prefill first": {"enable_chunked_prefill": False}} | GUESSING


@pytest.mark.parametrize("options", OWN_WAYS.values(), ids=OWN_WAYS)
def test_as_transformers(checkpoint, prompts, expected, options):
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        sent, _ = tiles_sent(llm)
        for _ in range(2):  # the second time from cached prefixes
            check_golden(llm.generate(prompts, GREEDY, use_tqdm=False), expected)
        if options.get("enable_prefix_caching", True) and "max_num_batched_tokens" not in options:
            assert len(sent) == len(set(sent))  # each is read once
        check_golden([llm.generate(prompts[1], GREEDY, use_tqdm=False)[0]], [expected[1]])


def test_preemption(checkpoint, prompts, expected):
    golden_preempted(partial(LLM, str(checkpoint.folder), **OPTIONS), prompts, GREEDY, expected)


@pytest.mark.parametrize("backend", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=["tp", "pp"])
def test_several_workers(checkpoint, prompts, expected, monkeypatch, backend):
    use_threads(monkeypatch)
    with LLM(str(checkpoint.folder), **OPTIONS, **backend, max_num_batched_tokens=40, max_num_seqs=8) as llm:
        check_golden(llm.generate(prompts, GREEDY, use_tqdm=False), expected)


def test_a_worker_in_a_process(checkpoint, prompts, expected):
    if not checkpoint.is_voxtral:
        pytest.skip("the same with other tiles")
    with LLM(str(checkpoint.folder), **OPTIONS, distributed_executor_backend="mp", enable_sleep_mode=True) as llm:
        check_golden(llm.generate(prompts, GREEDY, use_tqdm=False), expected)
        llm.sleep(1)
        llm.wake_up()
        check_golden(llm.generate(prompts, GREEDY, use_tqdm=False), expected)


@pytest.mark.parametrize("call", [{"level": 1}, {"level": 2}, {"level": 2, "tags": ["weights"]}], ids=str)
def test_sleep_in_the_middle_of_sounds(checkpoint, prompts, expected, call):
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "enable_sleep_mode": True}
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        outputs = asleep_meanwhile(llm, prompts, GREEDY, call, look=see_no_rows(llm))
        check_golden(outputs, expected)


def test_a_hibernation_in_the_middle_of_sounds(checkpoint, prompts, expected, tmp_path):
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4}
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        for number, prompt in enumerate(prompts):
            llm.llm_engine.add_request(str(number), prompt, GREEDY)
        ended = {}
        for _ in range(3):
            ended |= {output.request_id: output for output in llm.llm_engine.step() if output.finished}
        llm.hibernate(tmp_path / "bed")
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        llm.resume(tmp_path / "bed")
        while llm.llm_engine.has_unfinished_requests():
            ended |= {output.request_id: output for output in llm.llm_engine.step() if output.finished}
    check_golden([ended[key] for key in sorted(ended)], expected)


def test_prefixes_are_shared_by_sounds_not_by_their_tokens(checkpoint, sounds):
    text = spelled(TEXTS[1][0], checkpoint)

    def ask(number):
        asked = {"prompt": text, "multi_modal_data": {"audio": sounds[number]}}
        [output] = llm.generate(asked, GREEDY, use_tqdm=False)
        return output.outputs[0].cumulative_logprob, output.num_cached_tokens, output.prompt_token_ids

    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        (first, cached, ids), (same, found, _) = ask(0), ask(0)
        assert cached == 0 and found == (len(ids) - 1) // 8 * 8 and same == first
        other, found, other_ids = ask(3)  # as long, and another one
        assert other_ids == ids and found <= ids.index(AUDIO_ID) and other != first


def test_forks_and_beams_hear_the_sound(checkpoint, prompts):
    prompt = prompts[1]
    params = SamplingParams(temperature=1.0, n=3, seed=5, max_tokens=6, ignore_eos=True)
    beams = SamplingParams(n=3, beam_width=3, max_tokens=6, ignore_eos=True)
    found = []
    for options in (
        {"max_num_batched_tokens": 16, "max_num_seqs": 8},
        {"enable_prefix_caching": False, "enforce_eager": True},
    ):
        with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
            outputs = [llm.generate(prompt, each, use_tqdm=False)[0] for each in (params, beams)]
            found.append([[list(each.token_ids) for each in output.outputs] for output in outputs])
    assert found[0] == found[1]
    assert all(len(set(map(tuple, several))) > 1 for several in found[0])


def test_an_adapter_of_the_decoder_beside_sounds(checkpoint, prompts, tmp_path):
    targets = r"language_model\..*\.(q_proj|v_proj|down_proj)\.weight$"
    adapter = write_adapter(tmp_path / "adapter", checkpoint.folder, targets=targets)
    whole = merged(tmp_path / "merged", checkpoint.folder, adapter)
    with LLM(str(whole), **OPTIONS) as llm:
        expected = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
    lora = LoRARequest("adapter", 1, str(adapter))
    with LLM(str(checkpoint.folder), **OPTIONS, enable_lora=True, max_lora_rank=8) as llm:
        plain = llm.generate(prompts, GREEDY, use_tqdm=False)
        adapted = llm.generate(prompts, GREEDY, use_tqdm=False, lora_request=lora)
    assert [list(output.outputs[0].token_ids) for output in adapted] == expected
    assert [list(output.outputs[0].token_ids) for output in plain] != expected


def test_new_weights_of_the_encoder(checkpoint, prompts):
    tensors = load_file(checkpoint.folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("audio_tower.layers.0.fc1.weight"))
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        before = llm.generate(prompts, GREEDY, use_tqdm=False)
        engine_of(llm).update_weights([(name, -tensors[name])])
        after = llm.generate(prompts, GREEDY, use_tqdm=False)
        engine_of(llm).update_weights([(name, tensors[name])])
        again = llm.generate(prompts, GREEDY, use_tqdm=False)
    sums = [[output.outputs[0].cumulative_logprob for output in outputs] for outputs in (before, after, again)]
    assert [a == b for a, b in zip(sums[0], sums[1], strict=True)] == [True, False, False, False]
    assert sums[2] == sums[0]


@pytest.mark.parametrize(
    "options", [{"quantization": "int8"}, {"dtype": "bfloat16"}, {"load_format": "dummy"}], ids=str
)
def test_other_weights(checkpoint, prompts, expected, options):
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert [output.prompt_token_ids for output in outputs] == [ids for ids, *_ in expected]
        if "load_format" not in options:
            first = [output.outputs[0].logprobs[0] for output in outputs]
            near = [row[next(iter(row))].logprob for row in first]
            assert near == pytest.approx([logprobs[0] for *_, logprobs in expected], abs=0.3)


def test_newer_names_of_weights(checkpoint, prompts, expected, tmp_path):
    """As transformers' modules have them; it saves the older ones."""
    from safetensors.torch import save_file

    for file in checkpoint.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    newer = {}
    for name, tensor in load_file(checkpoint.folder / "model.safetensors").items():
        own = name.replace("language_model.model.", "model.language_model.").replace(
            "language_model.lm_head", "lm_head"
        )
        newer[own if own != name else f"model.{name}"] = tensor
    assert "lm_head.weight" in newer and "model.audio_tower.conv1.weight" in newer
    save_file(newer, tmp_path / "model.safetensors")
    with LLM(str(tmp_path), **OPTIONS) as llm:
        check_golden(llm.generate(prompts, GREEDY, use_tqdm=False), expected)


def test_conversations(checkpoint, sounds, tmp_path):
    file = wav(sounds[2], bits=32, is_float=True)
    (tmp_path / "a.wav").write_bytes(file)
    data = base64.b64encode(file).decode()
    url = f"data:audio/wav;base64,{data}"
    ways = [
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": url}},
        {"type": "audio_url", "audio_url": {"url": (tmp_path / "a.wav").as_uri()}},
        {"type": "audio", "audio": sounds[2]},
        {"type": "audio", "audio": (sounds[2], 16000)},
        {"type": "audio", "audio_url": url},
        {"type": "audio", "url": url},
        {"type": "audio", "path": str(tmp_path / "a.wav")},
        {"type": "audio", "base64": data},
    ]
    options = OPTIONS | {"allowed_local_media_path": tmp_path, "allowed_media_domains": ["127.0.0.1"]}
    with file_server(tmp_path) as address, LLM(str(checkpoint.folder), **options) as llm:
        ways.append({"type": "audio_url", "audio_url": {"url": f"{address}/a.wav"}})
        texts = [{"type": "text", "text": f"what is {checkpoint.word} this?"}]  # a user's words are text
        asked = [[{"role": "user", "content": [part, *texts]}] for part in ways]
        outputs = llm.chat(asked, GREEDY, use_tqdm=False)
        assert len({(tuple(o.prompt_token_ids), tuple(o.outputs[0].token_ids)) for o in outputs}) == 1
        rendered = llm.get_tokenizer().chat_template.render(
            [{"role": "user", "content": [{"type": "audio", "audio": ""}, {"type": "text", "text": "what is @ this?"}]}]
        )
        known = checkpoint.inputs(rendered, [sounds[2]])["input_ids"][0].tolist()
        ids, decode = outputs[0].prompt_token_ids, llm.get_tokenizer().decode
        assert decode(ids, False) == decode(known, False).replace("@", checkpoint.word)
        assert ids.count(AUDIO_ID) == known.count(AUDIO_ID)
        for bad, words in (
            ({"type": "audio_url", "audio_url": {"url": "file:///etc/hostname"}}, "allowed_local_media_path"),
            (
                {"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}},
                "sounds are not fetched from 'example.com'",
            ),
            ({"type": "audio_url", "audio_url": {"url": "data:image/png;base64,AAAA"}}, "is no sound"),
            ({"type": "audio_url"}, "needs the URL"),
            ({"type": "input_audio", "input_audio": {"data": "!"}}, "base64"),
            ({"type": "input_audio", "input_audio": {"data": data[:40]}}, "no samples"),
            ({"type": "input_audio"}, "needs data"),
            ({"type": "audio"}, "has one of"),
            ({"type": "audio", "audio": "a.wav"}, "sound's URL is data"),
        ):
            with pytest.raises(InvalidRequestError, match=words):
                llm.chat([{"role": "user", "content": [bad]}], use_tqdm=False)


def test_other_rates(checkpoint, sounds):
    slow = np.sin(np.arange(4000) / 9).astype(np.float32) * 0.3  # half a second at 8 kHz
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        asked = {"prompt": checkpoint.word, "multi_modal_data": {"audio": (slow, 8000)}}
        [output] = llm.generate(asked, GREEDY, use_tqdm=False)
        assert len(output.prompt_token_ids) == (10 if checkpoint.is_voxtral else 12)


REFUSED = [
    ("no place", 1, "0 places"),
    ("<sound>", 0, "1 places for sounds .*, and 0 sounds"),
    ("<sound>", 2, "1 places"),
    ("<sound>" * 4, 4, "at most 3 sounds"),
    ("<sound>" * 3, 3, "too long: its sounds alone"),
]


@pytest.mark.parametrize(("text", "number", "words"), REFUSED)
def test_refusals(limited, sounds, checkpoint, text, number, words):
    asked = {"prompt": spelled(text, checkpoint), "multi_modal_data": {"audio": [sounds[1]] * number}}
    with pytest.raises(InvalidRequestError, match=words):
        limited.generate(asked, use_tqdm=False)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"image": np.zeros((4, 4, 3), np.uint8)}, "takes text only"),
        ({"audio": "a.wav"}, "not their files"),
        ({"audio": np.zeros((4, 2), np.float32)}, "one channel"),
        ({"audio": np.zeros(40, np.int16)}, "floats"),
        ({"audio": (np.zeros(40, np.float32), 0)}, "sampling rate"),
        ({"audio": np.zeros(0, np.float32)}, "no samples"),
        ({"audio": np.full(400, np.nan, np.float32)}, "not finite"),
        ({"audio": 7}, "one channel"),
    ],
)
def test_what_is_no_sound(limited, checkpoint, data, words):
    with pytest.raises(InvalidRequestError, match=words):
        limited.generate({"prompt": checkpoint.word, "multi_modal_data": data}, use_tqdm=False)


def test_lengths_of_sounds(limited, checkpoint):
    def ask(seconds, **more):
        asked = {"prompt": checkpoint.word, "multi_modal_data": {"audio": sound(0, seconds)}} | more
        return limited.generate(asked, SamplingParams(max_tokens=1), use_tqdm=False)

    with pytest.raises(InvalidRequestError, match=r"mm_processor_kwargs are for pictures"):
        ask(0.5, mm_processor_kwargs={"max_pixels": 3})
    if checkpoint.is_voxtral:
        assert len(ask(0.001)[0].prompt_token_ids) == 10
        with pytest.raises(InvalidRequestError, match="context length"):
            ask(6.1)
        return
    with pytest.raises(InvalidRequestError, match=r"takes 1\.0 s, and the model hears 1 s at once"):
        ask(1.001)
    with pytest.raises(InvalidRequestError, match="too short for a row"):
        ask(0.02)
    assert len(ask(0.0201)[0].prompt_token_ids) == 1


@pytest.fixture(scope="module")
def limited(checkpoint):
    limits = {"audio": 3, "image": 2}
    with LLM(str(checkpoint.folder), **OPTIONS | {"max_model_len": 60}, limit_mm_per_prompt=limits) as llm:
        yield llm


@pytest.mark.parametrize("options", [{"limit_mm_per_prompt": {"audio": 0}}, {"language_model_only": True}], ids=str)
def test_the_text_model_alone(checkpoint, prompts, expected, options):
    with LLM(str(checkpoint.folder), **OPTIONS, **options) as llm:
        [parameters] = llm.collective_rpc(lambda worker: [n for n, _ in worker.loaded.model.named_parameters()])
        assert not [name for name in parameters if "hearing" in name]
        check_golden([llm.generate(TEXTS[0][0], GREEDY, use_tqdm=False)[0]], expected[:1])
        with pytest.raises(InvalidRequestError, match="takes no sounds: limit_mm_per_prompt"):
            llm.generate(prompts[1], use_tqdm=False)


def test_a_template_without_a_place_for_sounds(checkpoint, sounds, tmp_path):
    for file in checkpoint.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with LLM(str(tmp_path), **OPTIONS) as llm, pytest.raises(InvalidRequestError, match="no place for sounds"):
        llm.chat([{"role": "user", "content": [{"type": "audio", "audio": sounds[0]}]}], use_tqdm=False)


def test_models_of_text_refuse_sounds(qwen3_folder):
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=64) as llm:
        with pytest.raises(InvalidRequestError, match="takes no sounds"):
            llm.generate({"prompt": "a", "multi_modal_data": {"audio": sound(0)}}, use_tqdm=False)
        part = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
        with pytest.raises(InvalidRequestError, match="takes no sounds"):
            llm.chat([{"role": "user", "content": [part]}], use_tqdm=False)


@pytest.mark.parametrize("limit", [{"audio": -1}, {"audio": True}, {"sound": 1}], ids=str)
def test_limits(limit):
    with pytest.raises(ConfigError):
        LLM("demo", limit_mm_per_prompt=limit)
