"""Phi-4-multimodal in a whole engine: transformers' tokens for texts, pictures and sounds, whatever else it does."""

import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from kit.audio.checkpoint import sound
from kit.engine.scenes import GUESSING, WAYS, asleep_meanwhile, check_golden, golden_preempted, see_no_rows, tiles_sent
from kit.model.lora import merged, write_adapter
from kit.phi4 import SPECIAL, spelled, write_phi4, write_published
from kit.vision.checkpoint import picture
from kit.worker.threads import use_threads
from safetensors.torch import load_file

from lullm import LLM, LoRARequest, SamplingParams
from lullm.errors import InvalidRequestError, ModelLoadError

OPTIONS = {"dtype": "float32", "max_model_len": 512, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
NUM_TOKENS = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
PICTURES = [picture(61, 40), picture(28, 30, seed=1), picture(149, 60, seed=2)]
SOUNDS = [sound(0, 0.73), np.concatenate([sound(2), sound(3, 0.64)]), sound(4, 0.325)]
TEXTS = (
    ("hello world, the quick", (), ()),
    ("<audio>\nwhat fox?", (), (0,)),
    ("<image> jumps over <audio>the lazy <image>dog <audio>", (0, 1), (0, 2)),
    ("a b c <audio><image> d <image>", (2, 2), (1,)),
    ("<image> what?", (0,), ()),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_phi4(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(checkpoint):
    return golden(checkpoint)


def golden(checkpoint):
    return [
        checkpoint.continued(NUM_TOKENS, text, [PICTURES[n] for n in seen], [SOUNDS[n] for n in heard])
        for text, seen, heard in TEXTS
    ]


def asked(text, seen=(), heard=()):
    data = {"image": [PICTURES[n] for n in seen], "audio": [(SOUNDS[n], 16000) for n in heard]}
    return {"prompt": spelled(text), "multi_modal_data": data}


PROMPTS = [asked(*each) for each in TEXTS]


@pytest.mark.parametrize("options", (WAYS | GUESSING).values(), ids=WAYS | GUESSING)
def test_as_transformers(checkpoint, expected, options):
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        sent, _ = tiles_sent(llm)
        for _ in range(2):  # the second time from cached prefixes
            check_golden(llm.generate(PROMPTS, GREEDY, use_tqdm=False), expected)
        if options.get("enable_prefix_caching", True) and "max_num_batched_tokens" not in options:
            assert len(sent) == len(set(sent))  # each is read once
        check_golden([llm.generate(PROMPTS[3], GREEDY, use_tqdm=False)[0]], [expected[3]])


def test_preemption(checkpoint, expected):
    open_llm = partial(LLM, str(checkpoint.folder), **OPTIONS)
    golden_preempted(open_llm, PROMPTS, GREEDY, expected, spare=-20)  # their pictures leave much room otherwise


@pytest.mark.parametrize("backend", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=["tp", "pp"])
def test_several_workers(checkpoint, expected, monkeypatch, backend):
    use_threads(monkeypatch)
    with LLM(str(checkpoint.folder), **OPTIONS, **backend, max_num_batched_tokens=40, max_num_seqs=8) as llm:
        check_golden(llm.generate(PROMPTS, GREEDY, use_tqdm=False), expected)


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_in_the_middle(checkpoint, expected, level):
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "enable_sleep_mode": True}
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        check_golden(asleep_meanwhile(llm, PROMPTS, GREEDY, {"level": level}, look=see_no_rows(llm)), expected)


PARTS = [
    {"type": "audio", "audio": SOUNDS[0]},
    {"type": "image_pil", "image_pil": PICTURES[0]},
    {"type": "text", "text": "what fox?"},
]
STRINGS = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize("template", [None, STRINGS], ids=["parts", "strings"])
def test_conversations(checkpoint, tmp_path, template):
    """The template that its authors publish takes strings."""
    expected = checkpoint.continued(
        NUM_TOKENS, "<|user|><audio><image>what fox?<|end|><|assistant|>", PICTURES[:1], SOUNDS[:1]
    )
    folder = write_published(tmp_path / "model", checkpoint, template) if template else checkpoint.folder
    with LLM(str(folder), **OPTIONS) as llm:
        check_golden(llm.chat([{"role": "user", "content": PARTS}], GREEDY, use_tqdm=False), [expected])


def test_as_published(checkpoint, expected, tmp_path, caplog):
    """By its authors: other words for keys and tensors, and adapters among these."""
    folder = write_published(tmp_path / "model", checkpoint)
    names = load_file(folder / "model.safetensors").keys()
    for part in ("lora_A.vision", "base_layer", "linear_out", "glb_GN", "net.2"):
        assert any(part in name for name in names), part
    with LLM(str(folder), **OPTIONS) as llm:
        check_golden(llm.generate(PROMPTS, GREEDY, use_tqdm=False), expected)
        text = re.sub("<(image|audio)>", lambda match: f"<|{match[1]}_1|>", TEXTS[2][0])
        numbered = PROMPTS[2] | {"prompt": text.replace("image_1", "image_2", 1)}
        check_golden(llm.generate(numbered, GREEDY, use_tqdm=False), [expected[2]])
    assert not [record.message for record in caplog.records if "nothing is known" in record.message]


ADAPTED = r"layers\.\d+\.(self_attn\.(qkv_proj|o_proj)|mlp\.(gate_up_proj|down_proj))\.weight$"


def test_an_adapter_for_pictures(checkpoint, expected, tmp_path):
    """Of its fused matrices, for some requests, as users load its `vision-lora` and `speech-lora`."""
    adapter = write_adapter(tmp_path / "adapter", checkpoint.folder, targets=ADAPTED, size=0.1)
    folder = merged(tmp_path / "merged", checkpoint.folder, adapter)
    own = {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}
    checkpoint.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    with torch.no_grad():
        adapted = golden(checkpoint)[2:4]
    checkpoint.model.load_state_dict(own)
    requests = [None, None, *[LoRARequest("vision", 1, str(adapter))] * 2, None]
    with LLM(str(checkpoint.folder), **OPTIONS, enable_lora=True, max_lora_rank=8) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=requests)
    check_golden(outputs, [*expected[:2], *adapted, expected[4]])
    assert adapted[0][1:] != expected[2][1:]


@pytest.mark.parametrize("off", ["image", "audio"])
def test_one_of_the_two_alone(checkpoint, expected, off):
    kept, reason = (1, "takes text only: limit_mm") if off == "image" else (4, "takes no sounds: limit_mm")
    with LLM(str(checkpoint.folder), **OPTIONS, limit_mm_per_prompt={off: 0}) as llm:
        outputs = llm.generate([PROMPTS[0], PROMPTS[kept]], GREEDY, use_tqdm=False)
        check_golden(outputs, [expected[0], expected[kept]])
        with pytest.raises(InvalidRequestError, match=reason):
            llm.generate(PROMPTS[2], GREEDY, use_tqdm=False)


def test_text_alone(checkpoint, expected):
    with LLM(str(checkpoint.folder), **OPTIONS, language_model_only=True) as llm:
        check_golden(llm.generate(PROMPTS[0], GREEDY, use_tqdm=False), [expected[0]])


REFUSED = [
    ("<audio>", {}, {}, "1 places for sounds .*, and 0 sounds"),
    ("<audio><image>", {"audio": SOUNDS[0]}, {}, "1 places for pictures .*, and 0 pictures"),
    ("<audio>", {"audio": np.zeros(399, np.float32)}, {}, "too short for a row"),
    ("<audio>", {"audio": np.zeros(16_000 * 60, np.float32)}, {}, "its sounds alone take more than the 512 tokens"),
    ("<image>", {"image": picture(3, 90)}, {}, "90 pixels is so thin .*10 at least; cut it|90 x 3 pixels is so thin"),
    ("<image>", {"image": PICTURES[0]}, {"dynamic_hd": 7}, "dynamic_hd 7 of a request is above the engine's 6"),
    ("<image>", {"image": PICTURES[0]}, {"resample": 1}, "resample 1 of its image processor is not 3"),
    ("<video>", {"video": np.zeros((2, 30, 30, 3), np.uint8)}, {}, "takes no videos"),
]


@pytest.mark.parametrize(("text", "data", "settings", "reason"), REFUSED, ids=[reason for *_, reason in REFUSED])
def test_what_is_refused(limited, text, data, settings, reason):
    prompt = {"prompt": spelled(text), "multi_modal_data": data, "mm_processor_kwargs": settings or None}
    with pytest.raises(InvalidRequestError, match=reason):
        limited.generate(prompt, GREEDY, use_tqdm=False)


def test_fewer_squares(limited):
    prompt = asked("<image>", (0,)) | {"mm_processor_kwargs": {"dynamic_hd": 1}}
    [fewer, plain] = limited.generate([prompt, asked("<image>", (0,))], GREEDY, use_tqdm=False)
    assert len(fewer.prompt_token_ids) < len(plain.prompt_token_ids)


@pytest.fixture(scope="module")
def limited(checkpoint):
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        yield llm


def test_a_published_encoder_of_another_kind(checkpoint, tmp_path):
    folder = write_published(tmp_path / "model", checkpoint)
    data = json.loads((folder / "config.json").read_text())
    data["embd_layer"]["image_embd_layer"]["hd_transform_order"] = "glb_sub"
    (folder / "config.json").write_text(json.dumps(data))
    with pytest.raises(ModelLoadError, match="image_embd_layer: hd_transform_order is 'glb_sub'"):
        LLM(str(folder), **OPTIONS)


def test_words_are_tokens(checkpoint):
    assert [checkpoint.tokenizer.convert_tokens_to_ids(word) for word in SPECIAL] == list(range(len(SPECIAL)))
