"""Embedding models and rerankers in GGUF files: what their folders give, whatever the format of their numbers."""

import pytest
import torch
from engine.test_encoder_only import OPTIONS, PROMPTS, RAW, VARIANTS, assert_close, classify, embed, hidden_of
from engine.test_text_embedder import BIDIRECTIONAL, pooled, write_decoder
from kit.folder.encoder_only import write_encoder
from kit.folder.gguf_encoders import KINDS, RANK, write_encoder_gguf
from kit.folder.gguf_files import FORMATS
from kit.folder.sentence import write_modules
from torch.nn import Identity

from lullm import LLM
from lullm.config.model import ModelConfig
from lullm.errors import InvalidRequestError, ModelLoadError

FAMILIES = ("Bert", "Roberta", "XLMRoberta", "DistilBert", "NomicBert", "ModernBert")
OWN = {"XLMRoberta": {"type_vocab_size": 1}, "Gemma3Text": {"query_pre_attn_scalar": 16}}
"""What released models have: a file has no key for BERT's activation, nor for the factor of Gemma's scores."""


def write(folder, family, head="Model", **options):
    if family in BIDIRECTIONAL:
        return write_decoder(folder, family, head, **OWN.get(family, {}) | options)
    return write_encoder(folder, f"{family}{head}", **OWN.get(family, VARIANTS.get(family)) | options)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_vectors_of_the_folder(tmp_path, family):
    """To the bit; those of transformers are close."""
    hidden = hidden_of(write(tmp_path, family))
    path = write_encoder_gguf(tmp_path / "model.gguf", tmp_path, pooling=KINDS["mean_tokens"])
    write_modules(tmp_path, "mean_tokens", normalize=True)
    with LLM(str(path), **OPTIONS) as llm, LLM(str(tmp_path), **OPTIONS) as whole:
        found = embed(llm)
        assert_close(found, pooled(hidden, "mean_tokens"))
        assert torch.equal(found, embed(whole)) and torch.equal(embed(llm, params=None), embed(whole, params=None))
        assert llm.llm_engine.stats().num_blocks == 0


def test_files_without_a_pooling(tmp_path):
    """As folders without modules."""
    hidden = hidden_of(write(tmp_path, "Bert"))
    for stated in (None, 0):
        path = write_encoder_gguf(tmp_path / f"{stated}.gguf", tmp_path, pooling=stated)
        with LLM(str(path), **OPTIONS) as llm:
            assert_close(embed(llm), pooled(hidden, "cls_token"))


@pytest.mark.parametrize("family", ["Qwen3", "Qwen2", "Gemma3Text"])
def test_decoders_for_vectors(tmp_path, family):
    """Qwen3-Embedding's last token; decoders whose file says that they have no mask; EmbeddingGemma with its layers."""
    is_causal = family == "Qwen3"
    kind = "lasttoken" if is_causal else "mean_tokens"
    hidden = hidden_of(write(tmp_path, family, **{"is_causal": True} if is_causal else {}))
    expected = pooled(hidden, kind)
    if family == "Gemma3Text":
        dense = [(96, False, Identity), (48, False, Identity)]
        with torch.inference_mode():
            expected = write_modules(tmp_path, kind, normalize=True, dense=dense)(expected)
    path = write_encoder_gguf(tmp_path / "model.gguf", tmp_path, pooling=KINDS[kind])
    with LLM(str(path), **OPTIONS) as llm:
        assert_close(embed(llm), expected)
        assert_close(embed(llm, params=None), torch.nn.functional.normalize(expected, dim=1))
        with pytest.raises(InvalidRequestError, match="gives embeddings, not text"):
            llm.generate([[1, 2, 3]], use_tqdm=False)


def test_embedding_gemma_without_its_layers(tmp_path, caplog):
    hidden = hidden_of(write(tmp_path, "Gemma3Text"))
    path = write_encoder_gguf(tmp_path / "model.gguf", tmp_path, pooling=KINDS["mean_tokens"])
    with caplog.at_level("WARNING", logger="lullm"), LLM(str(path), **OPTIONS) as llm:
        assert_close(embed(llm), pooled(hidden, "mean_tokens"))
    assert "no layers behind the pooling (dense_2, dense_3)" in caplog.text


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("XLMRoberta", {"num_labels": 1}),
        ("DistilBert", {"num_labels": 3}),
        ("ModernBert", {"num_labels": 1, "classifier_pooling": "cls"}),
        ("ModernBert", {"num_labels": 2, "classifier_pooling": "mean", "classifier_bias": True}),
    ],
    ids=str,
)
def test_labels(tmp_path, family, options):
    """Of cross-encoders and classifiers; a score is a probability, as of a folder."""
    model = write(tmp_path, family, "ForSequenceClassification", **options)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in PROMPTS])
    path = write_encoder_gguf(tmp_path / "model.gguf", tmp_path, pooling=RANK if family == "XLMRoberta" else None)
    with LLM(str(path), **OPTIONS) as llm:
        assert_close(classify(llm, RAW), expected)
        if options["num_labels"] == 1:
            with LLM(str(tmp_path), **OPTIONS) as whole:
                pairs = ("the fox", ["a dog", "hello world"])
                ours, theirs = (
                    [one.outputs.score for one in each.score(*pairs, use_tqdm=False)] for each in (llm, whole)
                )
            assert ours == theirs and 0 < ours[0] < 1


def test_qwen3_reranker(tmp_path):
    """Its file has two rows of the head: a score is the probability of 'yes' beside 'no'."""
    model = write_decoder(tmp_path, "Qwen3", "ForSequenceClassification", num_labels=2, is_causal=True)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits.softmax(1)[:, :1] for prompt in PROMPTS])
    path = write_encoder_gguf(tmp_path / "model.gguf", tmp_path, pooling=RANK)
    with LLM(str(path), **OPTIONS) as llm:
        assert_close(classify(llm), expected)
        assert llm.llm_engine.model_config.pooler.pair_form == "qwen3_reranker"


@pytest.mark.parametrize(("family", "kind"), [("Bert", "F16"), ("NomicBert", "Q8_0"), ("ModernBert", "Q4_K")])
def test_formats(tmp_path, family, kind):
    """Vectors of the blocks are those of the numbers that they stand for."""
    sizes = {"hidden_size": 256, "intermediate_size": 256}
    write(tmp_path, family, **sizes)
    path = write_encoder_gguf(tmp_path / "model.gguf", tmp_path, FORMATS[kind], pooling=KINDS["mean_tokens"])
    plain = tmp_path / "plain.gguf"
    write_encoder_gguf(plain, tmp_path, pooling=KINDS["mean_tokens"], decoded=path)
    with LLM(str(path), **OPTIONS) as llm, LLM(str(plain), **OPTIONS) as whole:
        found, expected = embed(llm, params=None), embed(whole, params=None)
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
        assert torch.equal(torch.cat([embed(llm, [prompt], None) for prompt in PROMPTS]), found)


def test_sleep_and_wake(tmp_path):
    write(tmp_path, "NomicBert")
    path = write_encoder_gguf(tmp_path / "model.gguf", tmp_path, pooling=KINDS["mean_tokens"])
    with LLM(str(path), **OPTIONS, enable_sleep_mode=True) as llm:
        found = embed(llm)
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert torch.equal(embed(llm), found)


@pytest.mark.parametrize(
    ("family", "head", "options", "reason"),
    [
        ("Bert", "Model", {"pooling": RANK}, "pooling_type 4 is not supported for this bert file"),
        (
            "Bert",
            "Model",
            {"keys": [("add_causal_attention", True)]},
            "attention.causal True is not supported for bert",
        ),
        ("Bert", "ForSequenceClassification", {}, "no layer in front .*take the folder"),
        ("Qwen3", "Model", {"pooling": RANK}, "pooling_type 4 is not supported for this qwen3 file"),
        ("XLMRoberta", "ForSequenceClassification", {"skip": ["cls.output.weight", "cls.output.bias"]}, "cuts short"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_refused(tmp_path, family, head, options, reason):
    write(tmp_path, family, head)
    path = write_encoder_gguf(tmp_path / "model.gguf", tmp_path, **options)
    with pytest.raises(ModelLoadError, match=reason):
        ModelConfig.from_folder(path)
