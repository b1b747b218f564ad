"""What a prompt may have beside tokens, on a GPU: pictures, sounds, texts for an encoder, rows; and models that embed.

What the CPU gives. Run by `make gpu-check GPU_CHECK="--only feature-tests"`.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.audio.checkpoint import TIMED_IDS, sound, write_timed_whisper, write_whisper
from kit.audio.hearing import write_qwen2_audio, write_voxtral
from kit.engine.prompts import random_prompts
from kit.folder.checkpoint import write_tokenizer
from kit.folder.encoder_only import write_encoder
from kit.model.bart import write_bart
from kit.model.golden import SIZES, random_model, save
from kit.model.prompt_adapter import write_prompt_adapter

from lullm import LLM, PoolingParams, PromptAdapterRequest, SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

OPTIONS = {"dtype": "float32", "max_model_len": 256, "num_gpu_blocks_override": 160, "swap_space": 0}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
RAW = PoolingParams(use_activation=False)
PROMPTS = random_prompts(5, 60)


def tokens(llm: LLM, prompts: list[Any], params: SamplingParams = GREEDY, **more: Any) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False, **more)]


def both(folder: Any, ask: Callable[[LLM], Any], **options: Any) -> tuple[Any, Any]:
    """What the CPU answers, and the GPU: the same again behind a sleep of each level."""
    with LLM(str(folder), device="cpu", **OPTIONS | options) as llm:
        expected = ask(llm)
    with LLM(str(folder), device="cuda", enable_sleep_mode=True, **OPTIONS | options) as llm:
        found = ask(llm)
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            again = ask(llm)
            assert all(torch.equal(torch.tensor(a), torch.tensor(b)) for a, b in zip(again, found, strict=True))
    return expected, found


PICTURES = (
    "qwen2", "qwen2.5", "qwen3", "qwen3.5", "gemma3", "gemma4", "internvl", "idefics3", "pixtral", "mistral3", "next",
    "onevision", "glm4v",
)  # fmt: skip


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 40, "max_num_seqs": 4}], ids=["whole", "chunks"])
def test_pictures(tmp_path, kind, options):
    from kit.vision import checkpoint
    from kit.vision.checkpoint import picture

    made = {
        "qwen2": lambda: checkpoint.write_qwen_vl(tmp_path, "Qwen2VL"),
        "qwen2.5": lambda: checkpoint.write_qwen_vl(tmp_path, "Qwen2_5_VL"),
        "qwen3": lambda: checkpoint.write_qwen_vl(tmp_path, "Qwen3VL"),
        "qwen3.5": lambda: checkpoint.write_qwen_vl(tmp_path, "Qwen3_5"),
        "glm4v": lambda: checkpoint.write_glm4v(tmp_path),
        "gemma3": lambda: checkpoint.write_gemma3(tmp_path),
        "gemma4": lambda: checkpoint.write_gemma4(tmp_path),
        "internvl": lambda: checkpoint.write_internvl(tmp_path),
        "idefics3": lambda: checkpoint.write_idefics3(tmp_path),
        "pixtral": lambda: checkpoint.write_pixtral(tmp_path),
        "mistral3": lambda: checkpoint.write_pixtral(tmp_path, factor=2),
        "next": lambda: checkpoint.write_llava_next(tmp_path),
        "onevision": lambda: checkpoint.write_llava_next(tmp_path, is_onevision=True),
    }[kind]()
    prompts = [
        {"prompt": f"a {made.word} b", "multi_modal_data": {"image": [picture(61, 40)]}},
        {"prompt": "hello world, the quick"},
        {"prompt": f"{made.word} and {made.word}", "multi_modal_data": {"image": [picture(30, 50), picture(24, 24)]}},
    ]
    expected, found = both(tmp_path, lambda llm: tokens(llm, prompts), max_model_len=768, **options)
    assert found == expected


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 12, "max_num_seqs": 4}], ids=["whole", "chunks"])
def test_sounds(tmp_path, options):
    write_whisper(tmp_path)
    starts = [1, 2, 5, 7], [1], [6, *range(20, 37), 1, 2, 4, 7]
    prompts = [
        {"prompt_token_ids": ids, "multi_modal_data": {"audio": (sound(seed, 0.4 + 0.2 * seed), 16000)}}
        for seed, ids in enumerate(starts)
    ]
    expected, found = both(tmp_path, lambda llm: tokens(llm, prompts), **options | {"max_model_len": 64})
    assert found == expected


@pytest.mark.parametrize("kind", ["qwen2-audio", "voxtral"])
@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 4}], ids=["whole", "chunks"])
def test_sounds_in_prompts(tmp_path, kind, options):
    made = (write_qwen2_audio if kind == "qwen2-audio" else write_voxtral)(tmp_path)
    prompts = [
        {"prompt": f"a {made.word} b", "multi_modal_data": {"audio": sound(0, 0.7)}},
        {"prompt": "hello world, the quick"},
        {"prompt": f"{made.word} and {made.word}", "multi_modal_data": {"audio": [sound(1), sound(2, 0.3)]}},
    ]
    expected, found = both(tmp_path, lambda llm: tokens(llm, prompts), **options)
    assert found == expected


def test_times_of_sounds(tmp_path):
    write_timed_whisper(tmp_path, 3)
    start = [TIMED_IDS[word] for word in ("startoftranscript", "en", "transcribe")]
    prompts = [{"prompt_token_ids": start, "multi_modal_data": {"audio": sound(number)}} for number in range(3)]
    timed = SamplingParams(temperature=0.0, max_tokens=24, timestamps=True)
    expected, found = both(tmp_path, lambda llm: tokens(llm, prompts, timed), max_model_len=64)
    assert found == expected


def test_texts_of_an_encoder(tmp_path):
    write_bart(tmp_path)
    given = [0, 5, 6, 7, 99, 2], [9], [0, *range(30, 78), 2]
    starts = [2], [2, 0], [2, 0, *range(14, 30)]
    prompts = [
        {"encoder_prompt": {"prompt_token_ids": read}, "decoder_prompt": ids}
        for read, ids in zip(given, starts, strict=True)
    ]
    expected, found = both(tmp_path, lambda llm: tokens(llm, prompts), max_model_len=64)
    assert found == expected


@pytest.fixture
def qwen3(tmp_path):
    save(random_model("Qwen3", SIZES | {"vocab_size": 320, "max_position_embeddings": 256}), tmp_path)
    write_tokenizer(tmp_path)
    return tmp_path


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
def test_rows_as_prompts(qwen3, on_device):
    generator = torch.Generator().manual_seed(0)
    rows = [0.5 * torch.randn(len(prompt), SIZES["hidden_size"], generator=generator) for prompt in PROMPTS]

    def ask(llm: LLM) -> list[list[int]]:
        moved = on_device and llm.llm_engine.config.device == "cuda"
        return tokens(llm, [{"prompt_embeds": row.cuda() if moved else row} for row in rows] + PROMPTS[:1])

    expected, found = both(qwen3, ask, enable_prompt_embeds=True)
    assert found == expected


def test_prompt_adapters(qwen3, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    write_prompt_adapter(folder, 20, SIZES["hidden_size"])
    each = [PromptAdapterRequest("rows", 1, str(folder), 20), None] * 3
    expected, found = both(
        qwen3, lambda llm: tokens(llm, PROMPTS, prompt_adapter_request=each[: len(PROMPTS)]), enable_prompt_adapter=True
    )
    assert found == expected


ENCODERS = {
    "Bert": {}, "Roberta": {"type_vocab_size": 1}, "ModernBert": {"local_attention": 14}, "NomicBert": {},
    "Gte": {"type_vocab_size": 2}, "MPNet": {}, "DistilBert": {"hidden_dim": 72}, "Electra": {"embedding_size": 32},
    "Albert": {"embedding_size": 32}, "DebertaV2": {"relative_attention": True, "pos_att_type": "c2p|p2c"},
    "Gemma3Text": {"use_bidirectional_attention": True, "sliding_window": 20, "num_key_value_heads": 2, "head_dim": 16},
}  # fmt: skip


@pytest.mark.parametrize("family", ENCODERS)
def test_encoders(tmp_path, family):
    write_encoder(tmp_path, f"{family}Model", **ENCODERS[family])
    prompts = [[4 + (7 * place + length) % 120 for place in range(length)] for length in (1, 9, 50, 128, 3)]

    def ask(llm: LLM) -> list[list[float]]:
        return [one.outputs.embedding for one in llm.embed(prompts, pooling_params=RAW, use_tqdm=False)]

    options = {"num_gpu_blocks_override": None, "max_model_len": None}
    expected, found = both(tmp_path, ask, **options)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), atol=1e-4, rtol=0)


def test_a_row_for_each_token(qwen3):
    def ask(llm: LLM) -> list[list[list[float]]]:
        outputs = llm.encode(PROMPTS, RAW, pooling_task="token_embed", use_tqdm=False)
        return [one.outputs.data.tolist() for one in outputs]

    expected, found = both(qwen3, ask, convert="embed", max_num_batched_tokens=23, max_num_seqs=4)
    for rows, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(rows), torch.tensor(other), atol=1e-4, rtol=0)
