"""Prompts with pictures in a whole engine: transformers' tokens, whatever else the engine does meanwhile."""

import json
import random
import re
from functools import partial

import pytest
from kit.engine.parts import block_space_of, engine_of, runner_of
from kit.engine.scenes import (
    GUESSING,
    PREFILL_FIRST,
    WAYS,
    asleep_meanwhile,
    check_golden,
    golden_preempted,
    see_no_rows,
    tiles_sent,
)
from kit.vision.checkpoint import (
    picture,
    write_gemma3,
    write_gemma4,
    write_glm4v,
    write_idefics3,
    write_internvl,
    write_internvl_chat,
    write_lighton_ocr,
    write_llava,
    write_llava_next,
    write_paddle,
    write_pixtral,
    write_qwen_vl,
)
from kit.worker.threads import use_threads
from safetensors.torch import load_file, save_file

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, InvalidRequestError

OPTIONS = {"dtype": "float32", "max_model_len": 512, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
NUM_TOKENS = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
TEXTS = (
    ("hello world, the quick", ()),
    ("USER: <image>\nwhat fox? ASSISTANT:", (0,)),
    ("<image> jumps over <image>the lazy dog", (1, 2)),
    ("a b c <image><image>", (0, 0)),
)
PICTURES = [picture(61, 40), picture(28, 90, seed=1), picture(26, 24, seed=2), picture(61, 40, seed=3)]


WRITERS = {
    "llava": write_llava,
    "idefics3": write_idefics3,
    "internvl": write_internvl,
    "qwen2.5": write_qwen_vl,
    "qwen3": lambda folder: write_qwen_vl(folder, "Qwen3VL"),
    "qwen3.5": lambda folder: write_qwen_vl(folder, "Qwen3_5"),
    "glm4v": write_glm4v,
    "gemma3": write_gemma3,
    "gemma4": write_gemma4,
    "mistral3": lambda folder: write_pixtral(folder, 2),
    "next": write_llava_next,
    "paddle": write_paddle,
}


@pytest.fixture(scope="module", params=WRITERS.values(), ids=WRITERS)
def checkpoint(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(checkpoint):
    return [
        checkpoint.continued(spelled(text, checkpoint), [PICTURES[n] for n in shown], NUM_TOKENS)
        for text, shown in TEXTS
    ]


def spelled(text, checkpoint):
    return text.replace("<image>", checkpoint.word)


@pytest.fixture(scope="module")
def prompts(checkpoint):
    return [
        {"prompt": spelled(text, checkpoint), "multi_modal_data": {"image": [PICTURES[n] for n in shown]}}
        for text, shown in TEXTS
    ]


def kind_of(checkpoint):
    return type(checkpoint.model).__name__.removesuffix("ForConditionalGeneration")


OWN_WAYS = WAYS | PREFILL_FIRST | GUESSING


@pytest.mark.parametrize("options", OWN_WAYS.values(), ids=OWN_WAYS)
def test_as_transformers(checkpoint, prompts, expected, options):
    if "speculative_config" in options and kind_of(checkpoint) == "Qwen3_5":
        pytest.skip("a state cannot go back")
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        sent, _ = tiles_sent(llm)
        for _ in range(2):  # the second time from cached prefixes
            check_golden(llm.generate(prompts, GREEDY, use_tqdm=False), expected)
        if options.get("enable_prefix_caching", True) and "max_num_batched_tokens" not in options:
            assert len(sent) == len(set(sent))  # each is read once
        check_golden([llm.generate(prompts[1], GREEDY, use_tqdm=False)[0]], [expected[1]])


def test_paddle_ocr_as_published(tmp_path):
    """The text's keys stand beside `vision_config`, tensors have older names, and some are of no use."""
    checkpoint = write_paddle(tmp_path, tie_word_embeddings=False)
    text, seen = TEXTS[2]
    expected = checkpoint.continued(spelled(text, checkpoint), [PICTURES[n] for n in seen], NUM_TOKENS)
    data = json.loads((tmp_path / "config.json").read_text())
    language = data.pop("text_config")
    rope = language.pop("rope_parameters")
    data |= {key: value for key, value in language.items() if key not in ("model_type", "tie_word_embeddings")}
    data |= {"rope_theta": rope["rope_theta"], "use_bias": False, "use_3d_rope": True, "rope_is_neox_style": True}
    data["rope_scaling"] = {"mrope_section": rope["mrope_section"], "rope_type": "default", "type": "default"}
    data["vision_config"] |= {"model_type": "paddleocr_vl", "temporal_patch_size": 2, "tokens_per_second": 2}
    (tmp_path / "config.json").write_text(json.dumps(data))
    tensors = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        own = re.sub(r"^model\.(?=visual\.|projector\.)", "", name).replace("projector.", "mlp_AR.")
        tensors[own.replace("model.language_model.", "model.")] = tensor
    assert {"lm_head.weight", "mlp_AR.pre_norm.bias", "model.norm.weight"} <= tensors.keys()
    assert "visual.vision_model.post_layernorm.bias" in tensors
    for name in ("head.probe", "embeddings.packing_position_embedding.weight"):
        tensors[f"visual.vision_model.{name}"] = tensors["lm_head.weight"].new_zeros(3, 4)
    save_file(tensors, tmp_path / "model.safetensors")
    asked = {"prompt": spelled(text, checkpoint), "multi_modal_data": {"image": [PICTURES[n] for n in seen]}}
    with LLM(str(tmp_path), **OPTIONS) as llm:
        check_golden(llm.generate(asked, GREEDY, use_tqdm=False), [expected])


MISTRAL4 = {
    "model_type": "mistral4", "num_key_value_heads": 4, "head_dim": ..., "kv_lora_rank": 24, "q_lora_rank": 12,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 14, "n_routed_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}  # fmt: skip
OTHERS = {
    "qwen3.5, experts": lambda folder: write_qwen_vl(folder, "Qwen3_5Moe", mrope_section=[1, 1, 2]),
    "glm4.5v": lambda folder: write_glm4v(folder, "Glm4vMoe"),
    "glm-ocr": lambda folder: write_glm4v(folder, "GlmOcr"),
    "glm4.6v": lambda folder: write_glm4v(folder, "Glm46V"),
    "gemma4, causal": lambda folder: write_gemma4(folder, {"use_bidirectional_attention": None}),
    "gemma4, experts": lambda folder: write_gemma4(
        folder,
        {
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_global_key_value_heads": 1,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "mistral4": lambda folder: write_pixtral(folder, 2, MISTRAL4),
    "ministral3": lambda folder: write_pixtral(folder, 2, {"model_type": "ministral3"}),
    "internvl, published": lambda folder: write_internvl_chat(folder, text="qwen3"),
    "internvl, published, internlm2": lambda folder: write_internvl_chat(folder, text="internlm2"),
    "lighton": lambda folder: write_lighton_ocr(folder),
    "pixtral, qwen3": lambda folder: write_pixtral(folder, text={"model_type": "qwen3"}),
    "onevision": lambda folder: write_llava_next(folder, is_onevision=True, vision_aspect_ratio="anyres_max_2"),
}


@pytest.mark.parametrize("write", OTHERS.values(), ids=OTHERS)
def test_others_of_these_kinds(tmp_path, write):
    checkpoint = write(tmp_path)
    asked = {"prompt": spelled("a <image>fox<image>.", checkpoint), "multi_modal_data": {"image": PICTURES[:2]}}
    with LLM(str(tmp_path), **OPTIONS, max_num_batched_tokens=20, max_num_seqs=2) as llm:
        outputs = llm.generate([asked], GREEDY, use_tqdm=False)
    check_golden(outputs, [checkpoint.continued(asked["prompt"], PICTURES[:2], NUM_TOKENS)])


def test_preemption(checkpoint, prompts, expected):
    # Layers with windows, or states, have blocks of their own.
    spare = {"Gemma3": 18, "Gemma4": 22, "Qwen3_5": -5}.get(kind_of(checkpoint), 12)
    golden_preempted(partial(LLM, str(checkpoint.folder), **OPTIONS), prompts, GREEDY, expected, spare)


@pytest.mark.parametrize("backend", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=["tp", "pp"])
def test_several_workers(checkpoint, prompts, expected, monkeypatch, backend):
    use_threads(monkeypatch)
    with LLM(str(checkpoint.folder), **OPTIONS, **backend, max_num_batched_tokens=40, max_num_seqs=8) as llm:
        check_golden(llm.generate(prompts, GREEDY, use_tqdm=False), expected)


def test_a_worker_in_a_process(checkpoint, prompts, expected):
    if "idefics3" not in str(type(checkpoint.processor)).lower():
        pytest.skip("the same with other tiles")
    with LLM(str(checkpoint.folder), **OPTIONS, distributed_executor_backend="mp", enable_sleep_mode=True) as llm:
        check_golden(llm.generate(prompts, GREEDY, use_tqdm=False), expected)
        llm.sleep(1)
        llm.wake_up()
        check_golden(llm.generate(prompts, GREEDY, use_tqdm=False), expected)


@pytest.mark.parametrize("call", [{"level": 1}, {"level": 2}, {"level": 2, "tags": ["weights"]}], ids=str)
def test_sleep_in_the_middle_of_pictures(checkpoint, prompts, expected, call):
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "enable_sleep_mode": True}
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        outputs = asleep_meanwhile(llm, prompts, GREEDY, call, look=see_no_rows(llm))
        check_golden(outputs, expected)


@pytest.mark.parametrize(("write", "window"), [(write_gemma3, 5), (write_gemma3, 12), (write_gemma4, 7)])
def test_a_cached_prefix_that_ends_within_a_picture(tmp_path, write, window):
    """Its last rows are computed alone, and see those before them; also where a window hides the first ones."""
    checkpoint = write(tmp_path, {"sliding_window": window})
    shown, num_within = [PICTURES[0], PICTURES[1]], 0
    for block_size in (2, 8):
        with LLM(
            str(tmp_path), **OPTIONS | {"block_size": block_size}, max_num_batched_tokens=15, max_num_seqs=3
        ) as llm:
            for text in ("a<image>b<image> c d", "a<image>b<image>", "a<image>bc<image> jumps", "a<image> c<image>."):
                asked = {"prompt": spelled(text, checkpoint), "multi_modal_data": {"image": shown}}
                [output] = llm.generate(asked, GREEDY, use_tqdm=False)
                check_golden([output], [checkpoint.continued(asked["prompt"], shown, NUM_TOKENS)])
                within = output.prompt_token_ids[output.num_cached_tokens - 1 :][:2]
                num_within += output.num_cached_tokens > 0 and within == [3, 3]
    assert num_within


def test_a_step_without_room_for_a_picture_whose_rows_see_each_other(tmp_path):
    checkpoint = write_gemma3(tmp_path)
    asked = {"prompt": checkpoint.word, "multi_modal_data": {"image": PICTURES[0]}}
    with LLM(str(tmp_path), **OPTIONS, max_num_batched_tokens=12, max_num_seqs=5) as llm:
        with pytest.raises(InvalidRequestError, match="all 9 of them, and it has room for 8 .* of at least 13$"):
            llm.generate(asked, use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="has <image>, which stands for rows .* put <start_of_image> in"):
            llm.generate("<image>", use_tqdm=False)
        llm.generate("hello", GREEDY, use_tqdm=False)


def test_prefixes_are_shared_by_pictures_not_by_their_tokens(checkpoint):
    text, greedy = spelled(TEXTS[1][0], checkpoint), SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)

    def ask(number):
        [output] = llm.generate(
            {"prompt": text, "multi_modal_data": {"image": PICTURES[number]}}, greedy, use_tqdm=False
        )
        return output.outputs[0].token_ids, output.num_cached_tokens, output.prompt_token_ids

    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        (first, cached, ids), (same, found, _) = ask(0), ask(0)
        assert cached == 0 and found == (len(ids) - 1) // 8 * 8 and same == first
        other, found, other_ids = ask(3)
        begins = ids.index(3)
        assert other_ids == ids and found <= begins and other != first
        llm.reset_prefix_cache()
        assert ask(0)[:2] == (first, 0)


def test_forks_and_beams_see_the_picture(checkpoint, prompts):
    prompt = prompts[2]
    with LLM(str(checkpoint.folder), **OPTIONS, max_num_batched_tokens=32, max_num_seqs=8) as llm:
        params = SamplingParams(temperature=1.0, n=3, seed=5, max_tokens=6, ignore_eos=True)
        [several] = llm.generate(prompt, params, use_tqdm=False)
        [beams] = llm.generate(prompt, SamplingParams(n=3, beam_width=3, max_tokens=6, ignore_eos=True), use_tqdm=False)
    with LLM(str(checkpoint.folder), **OPTIONS, enable_prefix_caching=False, enforce_eager=True) as llm:
        [others] = llm.generate(prompt, params, use_tqdm=False)
        [other_beams] = llm.beam_search(prompt, 3, 6, ignore_eos=True)
    for one, other in ((several, others), (beams, other_beams)):
        assert [c.token_ids for c in one.outputs] == [c.token_ids for c in other.outputs]
    assert len({tuple(c.token_ids) for c in several.outputs}) > 1


def test_an_abort_in_the_middle_of_a_picture(checkpoint, prompts, expected):
    with LLM(str(checkpoint.folder), **OPTIONS, max_num_batched_tokens=16, max_num_seqs=4) as llm:
        engine = llm.llm_engine
        for number, prompt in enumerate(prompts[1:]):
            engine.add_request(str(number), prompt, GREEDY)
        for _ in range(2):
            engine.step()
        for number in range(3):
            engine.abort_request(str(number))
        block_space_of(llm).check_conservation()
        check_golden(llm.generate(prompts, GREEDY, use_tqdm=False), expected)


def test_workers_keep_few_rows(checkpoint):
    """As many as a step has tokens, whatever has come."""
    with LLM(str(checkpoint.folder), **OPTIONS, max_num_batched_tokens=64, max_num_seqs=2) as llm:
        sent, dropped = tiles_sent(llm)
        rng = random.Random(0)
        for seed in range(12):
            shown = picture(rng.randint(20, 80), rng.randint(20, 80), seed + 10)
            asked = {"prompt": f"{checkpoint.word} a", "multi_modal_data": {"image": shown}}
            llm.generate(asked, GREEDY, use_tqdm=False)
        ledger, rows = block_space_of(llm).tiles, runner_of(llm)._tiles._rows
        assert set(rows) == set(ledger._kept) == set(sent) - set(dropped) and dropped
        num_rows = sum(row.shape[1] for row in rows.values())
        has_words = "pixtral" in type(checkpoint.processor).__name__.lower()  # behind lines, and they count as rows
        assert num_rows < ledger._num_kept if has_words else num_rows == ledger._num_kept
        assert ledger._num_kept <= 64 + 25


def test_new_weights_of_the_tower(checkpoint, prompts):
    tensors = load_file(checkpoint.folder / "model.safetensors")
    pattern = re.compile(
        r"(vision.*layers?|visual.*blocks)\.0\.(mlp|feed_forward)\.(fc1|up_proj|linear_fc1)(\.linear)?\.weight$"
    )
    name = next(filter(pattern.search, tensors))
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        before = llm.generate(prompts, GREEDY, use_tqdm=False)
        engine_of(llm).update_weights([(name, -tensors[name])])
        after = llm.generate(prompts, GREEDY, use_tqdm=False)
        engine_of(llm).update_weights([(name, tensors[name])])
        again = llm.generate(prompts, GREEDY, use_tqdm=False)

    def logprob(outputs, number):
        return outputs[number].outputs[0].cumulative_logprob

    assert [logprob(before, n) == logprob(after, n) for n in range(4)] == [True, False, False, False]
    assert [o.outputs[0].token_ids for o in again] == [o.outputs[0].token_ids for o in before]


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
            assert near == pytest.approx([logprobs[0] for *_, logprobs in expected], abs=0.25)


def test_conversations(checkpoint, tmp_path):
    import base64

    PICTURES[1].save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    ways = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": {"url": (tmp_path / "a.png").as_uri()}},
        {"type": "input_image", "image_url": url},
        {"type": "image_pil", "image_pil": PICTURES[1]},
        {"type": "image", "image": PICTURES[1]},
    ]
    template = checkpoint.folder / "tokenizer_config.json"
    assert "image" in template.read_text()
    with LLM(str(checkpoint.folder), **OPTIONS, allowed_local_media_path=tmp_path) as llm:
        texts = [{"type": "text", "text": "what is <image> this?"}]  # a user's words are text
        asked = [[{"role": "user", "content": [part, *texts]}] for part in ways]
        outputs = llm.chat(asked, GREEDY, use_tqdm=False)
        assert len({(tuple(o.prompt_token_ids), tuple(o.outputs[0].token_ids)) for o in outputs}) == 1
        rendered = llm.get_tokenizer().chat_template.render(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is @ this?"}]}]
        )
        known = checkpoint.inputs(rendered, [PICTURES[1]])["input_ids"][0].tolist()
        decode = llm.get_tokenizer().decode
        ids = outputs[0].prompt_token_ids
        assert decode(ids, False) == decode(known, False).replace("@", "<image>")
        assert ids.count(3) == known.count(3)
        [plain] = llm.chat([{"role": "user", "content": "hello"}], GREEDY, use_tqdm=False)
        assert "hello" in plain.prompt  # in a template that only takes lists
        outside = {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}
        with pytest.raises(InvalidRequestError, match="allowed_local_media_path"):
            llm.chat([{"role": "user", "content": [outside]}], use_tqdm=False)


def test_a_template_that_takes_strings(tmp_path):
    """As InternVL's authors publish theirs. A user who spells a picture's word shows none."""
    checkpoint = write_internvl_chat(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    template = "{% for message in messages %}{{ message.role + ': ' + message.content + '<|im_end|>' }}{% endfor %}"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    parts = [{"type": "image", "image": PICTURES[0]}, {"type": "text", "text": "a <IMG_CONTEXT> fox"}]
    with LLM(str(tmp_path), **OPTIONS) as llm:
        for _ in range(2):
            [output] = llm.chat([{"role": "user", "content": parts}], GREEDY, use_tqdm=False)
        [plain] = llm.chat([{"role": "user", "content": "a fox"}], GREEDY, use_tqdm=False)
    known = checkpoint.continued("user: <IMG_CONTEXT>\na @ fox<|im_end|>", [PICTURES[0]], 1)[0]
    decode = llm.get_tokenizer().decode
    assert decode(output.prompt_token_ids, False) == decode(known, False).replace("@", "<IMG_CONTEXT>")
    assert output.prompt_token_ids.count(3) == known.count(3) > 0 and plain.prompt == "user: a fox<|im_end|>"


REFUSED = [
    ("no place", {"image": PICTURES[0]}, "0 places"),
    ("<image>", None, "1 places for pictures .<image>., and 0 pictures"),
    ("<image>", {"image": PICTURES[:2]}, "1 places"),
    ("<image>" * 4, {"image": PICTURES}, "at most 3 pictures"),
    ("<image>", {"video": PICTURES[0]}, "takes no videos: lullm sees videos with"),
    ("<image>", {"sound": PICTURES[0]}, "holds 'image' and 'video' only, not sound"),
    ("<image>", [PICTURES[0]], "not list"),
    ("<image>", {"image": "https://example.com/a.png"}, "not their addresses"),
    ("<image>", {"image": 7}, "not int"),
    ("<image>" * 3, {"image": PICTURES[:3]}, "too long"),
]


@pytest.mark.parametrize(("text", "data", "words"), REFUSED)
def test_refusals(limited, text, data, words):
    with pytest.raises(InvalidRequestError, match=words):
        limited.generate({"prompt": text, "multi_modal_data": data}, use_tqdm=False)


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    folder = write_llava(tmp_path_factory.mktemp("model")).folder
    with LLM(str(folder), **OPTIONS | {"max_model_len": 70}, limit_mm_per_prompt={"image": 3, "video": 0}) as llm:
        yield llm


def test_a_prompt_with_pictures_is_not_cut(limited):
    params, asked = SamplingParams(truncate_prompt_tokens=8), {"prompt": TEXTS[1][0]}
    with pytest.raises(InvalidRequestError, match="truncated"):
        limited.generate(asked | {"multi_modal_data": {"image": PICTURES[0]}}, params, use_tqdm=False)
    ids = limited.get_tokenizer().encode("<image> fox")
    asked = {"prompt_token_ids": ids, "multi_modal_data": {"image": PICTURES[0]}}
    assert len(limited.generate(asked, use_tqdm=False)[0].prompt_token_ids) == len(ids) + 24


@pytest.mark.parametrize(
    "options", [{"limit_mm_per_prompt": {"image": 0, "video": 0}}, {"language_model_only": True}], ids=str
)
def test_the_text_model_alone(checkpoint, prompts, expected, options):
    with LLM(str(checkpoint.folder), **OPTIONS, **options) as llm:
        [parameters] = llm.collective_rpc(lambda worker: [n for n, _ in worker.loaded.model.named_parameters()])
        assert not [name for name in parameters if "vision" in name]
        check_golden([llm.generate(TEXTS[0][0], GREEDY, use_tqdm=False)[0]], expected[:1])
        with pytest.raises(InvalidRequestError, match="takes text only: limit_mm_per_prompt"):
            llm.generate(prompts[1], use_tqdm=False)


def test_models_of_text_refuse_pictures(qwen3_folder):
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=64) as llm:
        with pytest.raises(InvalidRequestError, match="takes text only"):
            llm.generate({"prompt": "a", "multi_modal_data": {"image": PICTURES[0]}}, use_tqdm=False)
        part = {"type": "image_url", "image_url": {"url": "data:,"}}
        with pytest.raises(InvalidRequestError, match="takes text only"):
            llm.chat([{"role": "user", "content": [part]}], use_tqdm=False)
        llm.generate({"prompt": "a", "multi_modal_data": {}}, SamplingParams(max_tokens=1), use_tqdm=False)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"limit_mm_per_prompt": {"picture": 1}}, ConfigError),
        ({"limit_mm_per_prompt": {"image": -1}}, ConfigError),
        ({"limit_mm_per_prompt": {"image": True}}, ConfigError),
        ({"mm_processor_kwargs": {"size": 3}}, ConfigError),
        ({"mm_processor_kwargs": "[3]"}, ConfigError),
        ({"allowed_media_domains": ["https://example.com"]}, ConfigError),
        ({"allowed_media_domains": ["*.example.com"]}, ConfigError),
        ({"allowed_media_domains": [3]}, ConfigError),
        ({"allowed_media_domains": "example.com"}, ConfigError),
    ],
    ids=str,
)
def test_options(options, error):
    with pytest.raises(error):
        LLM("demo", **options)
