"""What encoders give is what transformers gives, alone with the same bits as in any batch; nothing is kept for them."""

import asyncio
import json
import random
import re

import pytest
import torch
from kit.engine.parts import scheduler_of
from kit.folder.encoder_only import SIZES, write_encoder
from kit.folder.sentence import write_modules
from kit.model.lora import merged, write_adapter
from kit.worker.threads import use_threads
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from lullm import LLM, AsyncLLMEngine, EngineConfig
from lullm.errors import ConfigError, InvalidRequestError, ModelLoadError, UnsupportedError
from lullm.types.lora.request import LoRARequest
from lullm.types.pooling.params import PoolingParams

OPTIONS = {"dtype": "float32", "max_num_seqs": 4}
RAW = PoolingParams(use_activation=False)
BY_DISTANCE = {
    "relative_attention": True, "position_buckets": 24, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
}  # fmt: skip
VARIANTS = {
    "Bert": {},
    "Roberta": {"type_vocab_size": 1},
    "XLMRoberta": {"hidden_act": "relu"},
    "ModernBert": {"local_attention": 14},
    "NomicBert": {},
    "Gte": {"type_vocab_size": 2},
    "DistilBert": {"hidden_dim": SIZES["intermediate_size"]},
    "MPNet": {},
    "Electra": {"embedding_size": 32},
    "Camembert": {"type_vocab_size": 1},
    "DebertaV2": BY_DISTANCE,
    "Albert": {"embedding_size": 32, "num_hidden_groups": 2},
}


def make_prompts():
    rng = random.Random(0)
    return [[rng.randrange(4, 130) for _ in range(count)] for count in (1, 9, 9, 50, 128, 3, 30, 9)]


PROMPTS = make_prompts()


def vectors(outputs):
    return torch.tensor([output.outputs.data for output in outputs])


def classify(llm, params=None, prompts=PROMPTS):
    return torch.tensor([one.outputs.probs for one in llm.classify(prompts, pooling_params=params, use_tqdm=False)])


def embed(llm, prompts=PROMPTS, params=RAW):
    return torch.tensor([one.outputs.embedding for one in llm.embed(prompts, pooling_params=params, use_tqdm=False)])


def hidden_of(model, prompts=PROMPTS):
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]


def assert_close(found, expected):
    torch.testing.assert_close(torch.as_tensor(found), expected, atol=5e-5, rtol=0)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return folder, write_encoder(folder, "BertModel")


@pytest.mark.parametrize("family", VARIANTS)
def test_hidden_states(tmp_path, family):
    """Of plain folders: the first token's, normalized unless the request says otherwise."""
    model = write_encoder(tmp_path, f"{family}Model", **VARIANTS[family])
    expected = torch.stack([rows[0] for rows in hidden_of(model)])
    assert expected.std(0).mean() > 0.3
    with LLM(str(tmp_path), **OPTIONS, max_num_batched_tokens=16) as llm:
        found = embed(llm)
        assert_close(found, expected)
        assert torch.equal(torch.cat([embed(llm, [prompt]) for prompt in PROMPTS]), found)
        assert torch.equal(embed(llm, PROMPTS[::-1]), found.flip(0))
        assert_close(embed(llm, params=None), torch.nn.functional.normalize(expected, dim=1))
        stats = llm.llm_engine.stats()
        assert stats.num_blocks == stats.num_host_blocks == stats.kv_cache_usage == 0
        assert not scheduler_of(llm).block_space.groups and not scheduler_of(llm).block_space.enable_prefix_caching


@pytest.mark.parametrize(
    "options",
    [
        {"share_att_key": False, "norm_rel_ebd": "none", "position_biased_input": True, "type_vocab_size": 2},
        {"position_buckets": -1, "max_relative_positions": 50, "pos_att_type": "c2p", "conv_kernel_size": 3},
        {"position_buckets": -1, "pos_att_type": "p2c", "share_att_key": False, "conv_kernel_size": 5},
    ],
)
def test_scores_by_distance(tmp_path, options):
    """DeBERTa's variants: matrices of distances, positions beside them, no buckets, one kind of scores, neighbours."""
    options = BY_DISTANCE | {"conv_act": "gelu"} | options
    model = write_encoder(tmp_path, "DebertaV2ForSequenceClassification", num_labels=3, **options)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in PROMPTS])
    with LLM(str(tmp_path), **OPTIONS) as llm:
        found = classify(llm, RAW)
        assert_close(found, expected)
        assert torch.equal(torch.cat([classify(llm, RAW, [prompt]) for prompt in PROMPTS[:4]]), found[:4])


PUBLISHED_GTE = {
    "layer_norm_type": "layer_norm", "logn_attention_clip1": False, "logn_attention_scale": False, "pack_qkv": True,
    "position_embedding_type": "rope", "unpad_inputs": "true", "use_memory_efficient_attention": "true",
}  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "prefix", "rope"),
    [
        ("NewForSequenceClassification", "new.", {"rope_theta": 200, "rope_scaling": {"type": "ntk", "factor": 8.0}}),
        ("GteForSequenceClassification", "", {"rope_theta": 300, "rope_scaling": None}),
    ],
)
def test_gte_as_it_is_published(tmp_path, architecture, prefix, rope):
    """Alibaba's and Snowflake's files, whose code is older than transformers' class."""
    model = write_encoder(tmp_path, "GteForSequenceClassification", num_labels=3)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | PUBLISHED_GTE | rope | {"architectures": [architecture]}
    del config["rope_parameters"]
    path.write_text(json.dumps(config | {"model_type": "new" if prefix else "gte"}))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({re.sub(r"^gte\.", prefix, name): each for name, each in tensors.items()}, tmp_path / "model.safetensors")
    size, theta, factor = 12, rope["rope_theta"], (rope["rope_scaling"] or {"factor": 1.0})["factor"]
    turns = [(theta * factor) ** (-2 * pair / size) / factor ** (2 / size) for pair in range(size // 2)]
    model.gte.rotary_emb.inv_freq = torch.tensor(turns)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in PROMPTS])
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert_close(classify(llm, RAW), expected)


@pytest.mark.parametrize("family", ["Bert", "ModernBert"])
def test_means_of_sentence_transformers(tmp_path, family):
    model = write_encoder(tmp_path, f"{family}Model")
    write_modules(tmp_path, "mean_tokens", normalize=True)
    expected = torch.stack([rows.mean(0) for rows in hidden_of(model)])
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert_close(embed(llm), expected)
        assert_close(embed(llm, params=None), torch.nn.functional.normalize(expected, dim=1))


OF_MEANS = {"classifier_pooling": "mean", "classifier_bias": True}
LABELS = [*((family, {}) for family in VARIANTS), ("ModernBert", OF_MEANS)]


@pytest.mark.parametrize(("family", "options"), LABELS)
def test_classes(tmp_path, family, options):
    model = write_encoder(tmp_path, f"{family}ForSequenceClassification", num_labels=3, **VARIANTS[family] | options)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in PROMPTS])
    with LLM(str(tmp_path), **OPTIONS) as llm:
        found = classify(llm, RAW)
        assert_close(found, expected)
        assert_close(classify(llm), expected.softmax(1))
        if not options:
            assert torch.equal(torch.cat([classify(llm, RAW, [prompt]) for prompt in PROMPTS[:4]]), found[:4])


@pytest.mark.parametrize("family", VARIANTS)
def test_classes_of_tokens(tmp_path, family):
    model = write_encoder(tmp_path, f"{family}ForTokenClassification", num_labels=5, **VARIANTS[family])
    with torch.inference_mode():
        expected = [model(torch.tensor([prompt])).logits[0] for prompt in PROMPTS]
    with LLM(str(tmp_path), **OPTIONS) as llm:
        found = rows_of(llm)
        for rows, ours in zip(expected, found, strict=True):
            assert_close(ours, rows)
        alone = [rows_of(llm, [prompt])[0] for prompt in PROMPTS]
        assert all(map(torch.equal, alone, found))
        probabilities = llm.encode(PROMPTS[:2], pooling_task="token_classify", use_tqdm=False)
        assert_close(probabilities[1].outputs.data, expected[1].softmax(1))
        with pytest.raises(InvalidRequestError, match="labels of tokens"):
            llm.classify(PROMPTS, use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="labels tokens"):
            llm.score("a", "b", use_tqdm=False)


def rows_of(llm, prompts=PROMPTS):
    outputs = llm.encode(prompts, RAW, pooling_task="token_classify", use_tqdm=False)
    return [output.outputs.data for output in outputs]


@pytest.mark.parametrize("family", ["Bert", "XLMRoberta"])
def test_cross_encoders(tmp_path, family):
    """The tokenizer's rules say what stands around a pair, and which text a token is in."""
    model = write_encoder(tmp_path, f"{family}ForSequenceClassification", num_labels=1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    query, documents = "hello fox", ["the lazy dog", "quick", "a b c d e f g h i j k l m", "jumps"]
    expected = []
    for document in documents:
        pair = tokenizer.encode(query, document)
        types = torch.tensor([pair.type_ids]) * (family == "Bert")
        with torch.inference_mode():
            expected.append(model(torch.tensor([pair.ids]), token_type_ids=types).logits[0])
    expected = torch.cat(expected)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        outputs = llm.score(query, documents, pooling_params=RAW, use_tqdm=False)
        assert_close([output.outputs.score for output in outputs], expected)
        assert outputs[0].prompt_token_ids == tokenizer.encode(query, documents[0]).ids
        outputs = llm.score(query, documents, use_tqdm=False)
        assert_close([output.outputs.score for output in outputs], expected.sigmoid())
        # what looks like a separator is text
        [output] = llm.score("a [SEP] b", "c", use_tqdm=False)
        assert output.prompt_token_ids.count(3) == 2
        with pytest.raises(InvalidRequestError, match="write the instruction into the query"):
            llm.score("a", "b", instruction="judge", use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="between the two texts, and no template"):
            llm.score("a", "b", chat_template="{{ messages }}", use_tqdm=False)
        long = ["a b c " * 40, "d e f g " * 50]
        with pytest.raises(InvalidRequestError, match="too long"):
            llm.score(*long, use_tqdm=False)
        for texts in (long, long[::-1], ("a b", long[1]), (long[0], "d")):
            for most in (-1, 33, 34):
                params = PoolingParams(truncate_prompt_tokens=most)
                [output] = llm.score(*texts, pooling_params=params, use_tqdm=False)
                tokenizer.enable_truncation(most if most > 0 else 130 - 2 * (family != "Bert"))
                assert output.prompt_token_ids == tokenizer.encode(*texts).ids
                tokenizer.no_truncation()
        with pytest.raises(InvalidRequestError, match="too few for a pair"):
            llm.score("a", "b", pooling_params=PoolingParams(truncate_prompt_tokens=4), use_tqdm=False)


def test_texts(bert):
    folder, model = bert
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with LLM(str(folder), **OPTIONS) as llm:
        [output] = llm.embed("the quick fox", use_tqdm=False)
        assert output.prompt_token_ids == tokenizer.encode("the quick fox").ids
        with pytest.raises(InvalidRequestError, match="too long: 202 tokens > 130"):
            llm.embed("a " * 200, use_tqdm=False)
        for most in (7, -1):
            params = PoolingParams(truncate_prompt_tokens=most)
            [output] = llm.embed("a b c d " * 50, pooling_params=params, use_tqdm=False)
            tokenizer.enable_truncation(most if most > 0 else 130)
            assert output.prompt_token_ids == tokenizer.encode("a b c d " * 50).ids
        with pytest.raises(InvalidRequestError, match="gives embeddings, not text"):
            llm.generate("hello", use_tqdm=False)
        one, other = hidden_of(model, [tokenizer.encode(text).ids for text in ("a fox", "a dog")])
        [output] = llm.score("a fox", "a dog", use_tqdm=False)
        assert_close([output.outputs.score], torch.cosine_similarity(one[:1], other[:1]))


def test_sleep_updates_and_hibernation(bert, tmp_path):
    """Queued texts are computed after a wake, or by another engine."""
    folder, model = bert
    with LLM(str(folder), **OPTIONS, enable_sleep_mode=True) as llm:
        expected = embed(llm)
        for level in (1, 2):
            for number, prompt in enumerate(PROMPTS):
                llm.llm_engine.add_request(f"{level} {number}", prompt, RAW)
            llm.sleep(level)
            llm.wake_up()
            found = {}
            while llm.llm_engine.has_unfinished_requests():
                found |= {output.request_id: output for output in llm.llm_engine.step()}
            assert torch.equal(vectors([found[f"{level} {number}"] for number in range(len(PROMPTS))]), expected)
        state = {name: 0.9 * tensor for name, tensor in model.state_dict().items() if "position_ids" not in name}
        llm.update_weights(state.items())
        changed = embed(llm)
        assert (changed - expected).abs().max() > 1e-3
        llm.update_weights((name, tensor / 0.9) for name, tensor in state.items())
        assert_close(embed(llm), expected)
    llm = LLM(str(folder), **OPTIONS)
    for number, prompt in enumerate(PROMPTS):
        llm.llm_engine.add_request(str(number), prompt, RAW)
    llm.llm_engine.step()
    llm.llm_engine.hibernate(tmp_path / "image")
    llm.shutdown()
    llm = LLM(str(folder), **OPTIONS)
    llm.llm_engine.resume(tmp_path / "image")
    found = {}
    while llm.llm_engine.has_unfinished_requests():
        found |= {output.request_id: output for output in llm.llm_engine.step()}
    left = sorted(found, key=int)
    assert left and torch.equal(vectors([found[number] for number in left]), expected[[int(number) for number in left]])
    llm.shutdown()


def test_adapters(tmp_path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    write_encoder(base, "BertModel")
    targets = r"layer\.\d+\..*\b(query|key|value|dense)\.weight$"
    write_adapter(adapter, base, targets=targets, target_modules=["query", "key", "value", "dense"])
    with LLM(str(merged(tmp_path / "merged", base, adapter)), **OPTIONS) as llm:
        expected = embed(llm)
    with LLM(str(base), **OPTIONS, enable_lora=True) as llm:
        plain = embed(llm)
        request = LoRARequest("one", 1, str(adapter))
        outputs = llm.embed(PROMPTS, pooling_params=RAW, use_tqdm=False, lora_request=request)
        assert_close(torch.tensor([output.outputs.embedding for output in outputs]), expected)
        assert (plain - expected).abs().max() > 0.1 and torch.equal(embed(llm), plain)


def test_workers_share_an_encoder(tmp_path, monkeypatch):
    heads = {"Roberta": "ForSequenceClassification"}
    for family in ("Bert", "Roberta", "MPNet", "DebertaV2", "Albert"):
        folder = tmp_path / family
        write_encoder(folder, f"{family}{heads.get(family, 'Model')}", num_labels=3, **VARIANTS[family])
        with LLM(str(folder), **OPTIONS) as llm:
            expected = vectors(llm.encode(PROMPTS, pooling_params=RAW, use_tqdm=False))
        with monkeypatch.context() as patch:
            use_threads(patch)
            with LLM(str(folder), **OPTIONS, tensor_parallel_size=2) as llm:
                assert_close(vectors(llm.encode(PROMPTS, pooling_params=RAW, use_tqdm=False)), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_smaller_types(bert, dtype):
    folder, model = bert
    options = {"quantization": "int8"} if dtype == "int8" else {"dtype": dtype}
    expected = torch.stack([rows[0] for rows in hidden_of(model)])
    with LLM(str(folder), **options) as llm:
        assert torch.cosine_similarity(embed(llm), expected).min() > 0.99


def test_many_callers_at_once(bert):
    folder, model = bert
    rng = random.Random(1)
    prompts = [[rng.randrange(4, 130) for _ in range(rng.randrange(1, 40))] for _ in range(60)]
    expected = torch.stack([rows[0] for rows in hidden_of(model, prompts)])

    async def ask(engine, number):
        async for output in engine.encode(prompts[number], RAW, str(number)):
            return output.outputs.data

    async def run():
        engine = AsyncLLMEngine(EngineConfig(model=str(folder), **OPTIONS))
        try:
            return await asyncio.gather(*(ask(engine, number) for number in range(len(prompts))))
        finally:
            await engine.shutdown()

    assert_close(torch.tensor(asyncio.run(run())), expected)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"kv_cache_dtype": "int8"}, ConfigError, "an encoder, which has no KV cache"),
        ({"num_gpu_blocks_override": 9}, ConfigError, "no KV cache"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, ConfigError, "no next tokens"),
        ({"pipeline_parallel_size": 2}, UnsupportedError, "tensor_parallel_size"),
        ({"enable_prompt_embeds": True}, UnsupportedError, "special tokens"),
        ({"runner": "generate"}, ConfigError, "no head for next tokens"),
        ({"convert": "rerank"}, ConfigError, "no head"),
        ({"max_model_len": 131}, ConfigError, "130 positions"),
    ],
)
def test_what_an_encoder_has_not(bert, options, error, words):
    with pytest.raises(error, match=words):
        LLM(str(bert[0]), **options)


def test_wrong_files_are_named(tmp_path):
    write_encoder(tmp_path, "BertModel")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for keys, words in (
        ({"max_position_embeddings": 99}, "max_position_embeddings"),
        ({"num_hidden_layers": 4}, "num_hidden_layers is 4"),
        ({"intermediate_size": 60}, "72"),
        ({"type_vocab_size": 3}, "token_type_embeddings"),
    ):
        path.write_text(json.dumps(config | keys))
        with pytest.raises(ModelLoadError, match=words):
            LLM(str(tmp_path))
