"""Decoders without a causal mask, and layers behind the pooling: what transformers and torch give, in any batch."""

import json

import pytest
import torch
from engine.test_encoder_only import OPTIONS, PROMPTS, RAW, assert_close, classify, embed, hidden_of
from kit.engine.parts import scheduler_of
from kit.folder.encoder_only import write_encoder
from kit.folder.sentence import write_modules
from kit.model.lora import merged, write_adapter
from kit.worker.threads import use_threads
from torch.nn import GELU, Identity, ReLU, SiLU, Tanh
from torch.nn.functional import normalize

from lullm import LLM
from lullm.cli.main import main
from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.types.lora.request import LoRARequest
from lullm.types.pooling.params import PoolingParams

DECODER = {"num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "attn_implementation": "eager"}
BIDIRECTIONAL = {
    "Gemma3Text": {"use_bidirectional_attention": True, "sliding_window": 20},
    "Qwen2": {"is_causal": False},
    "Qwen3": {"is_causal": False},
    "Llama": {"is_causal": False},
    "Mistral": {"is_causal": False, "sliding_window": None},
}
PLAIN = PoolingParams(normalize=False)


def write_decoder(folder, family, head="Model", **options):
    return write_encoder(folder, f"{family}{head}", **DECODER | BIDIRECTIONAL[family] | options)


def change(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def rows_of(llm, prompts=PROMPTS):
    outputs = llm.encode(prompts, PLAIN, pooling_task="token_embed", use_tqdm=False)
    return [output.outputs.data for output in outputs]


@pytest.mark.parametrize("family", BIDIRECTIONAL)
def test_decoders_without_a_mask(tmp_path, family):
    """They keep nothing, as encoders; without modules the last token's state is the embedding."""
    hidden = hidden_of(write_decoder(tmp_path, family))
    with LLM(str(tmp_path), **OPTIONS, max_num_batched_tokens=16) as llm:
        found = embed(llm)
        assert_close(found, torch.stack([rows[-1] for rows in hidden]))
        assert torch.equal(torch.cat([embed(llm, [prompt]) for prompt in PROMPTS]), found)
        for rows, expected in zip(rows_of(llm), hidden, strict=True):
            assert_close(rows, expected)
        assert llm.llm_engine.stats().num_blocks == 0 and not scheduler_of(llm).block_space.groups
        with pytest.raises(InvalidRequestError, match="gives embeddings, not text"):
            llm.generate([[1, 2, 3]], use_tqdm=False)
    change(tmp_path, is_causal=True, use_bidirectional_attention=False)
    with LLM(str(tmp_path), **OPTIONS, runner="pooling") as llm:
        assert (rows_of(llm)[3][0] - hidden[3][0]).abs().max() > 0.1, "the first row saw what comes behind"
    key = "use_bidirectional_attention" if family == "Gemma3Text" else "is_causal"
    with LLM(str(tmp_path), **OPTIONS, hf_overrides={key: family == "Gemma3Text"}) as llm:
        assert torch.equal(embed(llm), found)


@pytest.mark.parametrize("pooling", ["avg", "last"])
def test_bidirectional_llama(tmp_path, pooling):
    hidden = hidden_of(write_decoder(tmp_path, "Llama"))
    change(tmp_path, architectures=["LlamaBidirectionalModel"], model_type="llama_bidirec", pooling=pooling)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "is_causal"}))
    expected = [rows.mean(0) if pooling == "avg" else rows[-1] for rows in hidden]
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert_close(embed(llm), torch.stack(expected))


def test_labels_of_a_decoder_without_a_mask(tmp_path):
    model = write_decoder(tmp_path, "Qwen2", "ForSequenceClassification", num_labels=3)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in PROMPTS])
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert_close(classify(llm, RAW), expected)


def test_adapters_of_a_decoder_without_a_mask(tmp_path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    write_decoder(base, "Qwen2")
    names = ["q_proj", "v_proj", "down_proj"]
    write_adapter(adapter, base, targets=rf"layers\.\d+\..*\b({'|'.join(names)})\.weight$", target_modules=names)
    with LLM(str(merged(tmp_path / "merged", base, adapter)), **OPTIONS) as llm:
        expected = embed(llm)
    with LLM(str(base), **OPTIONS, enable_lora=True) as llm:
        request = LoRARequest("one", 1, str(adapter))
        outputs = llm.embed(PROMPTS, pooling_params=RAW, use_tqdm=False, lora_request=request)
        assert_close(torch.tensor([output.outputs.embedding for output in outputs]), expected)


def pooled(hidden, kind):
    each = {
        "mean_tokens": lambda rows: rows.mean(0),
        "cls_token": lambda rows: rows[0],
        "lasttoken": lambda rows: rows[-1],
    }
    return torch.stack([each[kind](rows) for rows in hidden])


@pytest.mark.parametrize(
    ("family", "kind", "dense"),
    [
        ("Gemma3Text", "mean_tokens", [(192, False, Identity), (48, False, Identity)]),
        ("Bert", "mean_tokens", [(40, True, Tanh)]),
        ("ModernBert", "cls_token", [(70, True, GELU), (33, True, ReLU)]),
        ("Qwen3", "lasttoken", [(96, True, SiLU)]),
    ],
)
def test_layers_behind_the_pooling(tmp_path, family, kind, dense):
    """EmbeddingGemma's modules first."""
    write = write_decoder if family in BIDIRECTIONAL else write_encoder
    hidden = hidden_of(write(tmp_path, family if family in BIDIRECTIONAL else f"{family}Model"))
    layers = write_modules(tmp_path, kind, normalize=True, dense=dense)
    with torch.inference_mode():
        expected, of_tokens = layers(pooled(hidden, kind)), layers(hidden[3])
    with LLM(str(tmp_path), **OPTIONS) as llm:
        found = embed(llm)
        assert_close(found, expected)
        assert torch.equal(torch.cat([embed(llm, [prompt]) for prompt in PROMPTS]), found)
        assert_close(embed(llm, params=None), normalize(expected, dim=1))
        assert_close(embed(llm, params=PoolingParams(dimensions=7)), normalize(expected[:, :7], dim=1))
        assert_close(rows_of(llm, [PROMPTS[3]])[0], of_tokens)
        with pytest.raises(InvalidRequestError, match=f"is above the {expected.shape[1]} that the model has"):
            embed(llm, params=PoolingParams(dimensions=expected.shape[1] + 1))


@pytest.mark.parametrize(("kind", "activation"), [("lasttoken", Tanh), ("mean_tokens", Identity)])
def test_layers_behind_a_causal_model(tmp_path, kind, activation):
    hidden = hidden_of(write_decoder(tmp_path, "Qwen3", is_causal=True))
    layers = write_modules(tmp_path, kind, normalize=False, dense=[(20, True, activation)])
    with torch.inference_mode():
        expected = layers(pooled(hidden, kind))
    with LLM(str(tmp_path), **OPTIONS, max_num_batched_tokens=16) as llm:
        assert_close(embed(llm), expected)
    write_modules(tmp_path, "mean_tokens", normalize=False, dense=[(20, True, Tanh)])
    with pytest.raises(ModelLoadError, match="may have no activation"):
        LLM(str(tmp_path))


def test_layers_sleep_and_are_updated_shared_and_copied(tmp_path, monkeypatch):
    folder, copy = tmp_path / "model", tmp_path / "copy"
    hidden = hidden_of(write_decoder(folder, "Gemma3Text"))
    layers = write_modules(folder, "mean_tokens", normalize=True, dense=[(64, True, Identity), (24, True, Tanh)])
    with torch.inference_mode():
        expected = layers(pooled(hidden, "mean_tokens"))
    with LLM(str(folder), **OPTIONS, enable_sleep_mode=True) as llm:
        found = embed(llm)
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert torch.equal(embed(llm), found)
        llm.update_weights([("3_Dense.linear.weight", torch.zeros(24, 64)), ("3_Dense.linear.bias", torch.ones(24))])
        assert_close(embed(llm), torch.full((len(PROMPTS), 24), 1.0).tanh())
    with monkeypatch.context() as patch:
        use_threads(patch)
        with LLM(str(folder), **OPTIONS, tensor_parallel_size=2) as llm:
            assert_close(embed(llm), expected)
    assert main(["quantize", str(folder), str(copy), "--quantization", "int8"]) == 0
    with LLM(str(copy), **OPTIONS) as llm:
        assert torch.cosine_similarity(embed(llm), expected).min() > 0.99


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"activation_function": "torch.nn.modules.activation.Softplus"}, "Softplus.*only Identity, Tanh"),
        ({"in_features": 47}, "in_features is 47, and what comes before has 48"),
        ({"use_residual": True}, "use_residual True is not supported"),
        ({"out_features": 9}, "2_Dense"),
    ],
)
def test_wrong_layers_are_named(tmp_path, keys, words):
    write_encoder(tmp_path, "BertModel")
    write_modules(tmp_path, "mean_tokens", normalize=True, dense=[(20, True, Tanh)])
    path = tmp_path / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    with pytest.raises(ModelLoadError, match=words):
        LLM(str(tmp_path))


def test_missing_layers_are_named(tmp_path):
    write_encoder(tmp_path, "BertModel")
    write_modules(tmp_path, "mean_tokens", normalize=True, dense=[(20, True, Tanh)])
    (tmp_path / "2_Dense" / "model.safetensors").rename(tmp_path / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="2_Dense holds pickled weights only"):
        LLM(str(tmp_path))


@pytest.mark.parametrize(
    ("family", "keys", "words"),
    [
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "without sliding windows"),
        ("Llama", {"architectures": ["LlamaBidirectionalForSequenceClassification"]}, "is not supported"),
        ("Llama", {"architectures": ["LlamaBidirectionalModel"], "pooling": "weighted_avg"}, "only avg, cls, last"),
    ],
)
def test_what_is_not_built_is_refused(tmp_path, family, keys, words):
    write_decoder(tmp_path, family)
    change(tmp_path, **{"layer_types": None} | keys)
    with pytest.raises(ModelLoadError, match=words):
        LLM(str(tmp_path), model_impl="lullm")
