"""The same bits whatever the batch: tokens and log-probabilities of requests in bfloat16, greedy and seeded.

Each request alone, without prefix cache, on one thread, gives what is expected. Batches, chunks, the prefix cache,
preemption, sleep, threads and recordings must not change a bit of it.
"""

import json
import random

import pytest
from kit.engine.parts import block_space_of
from kit.folder.checkpoint import write_checkpoint

from lullm import LLM, SamplingParams
from lullm.ops.cpu.library import absence

pytestmark = pytest.mark.skipif(absence() is not None, reason="torch's own products follow the batch")

VOCAB = 6000
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 48}
FAMILIES = {
    "qwen3": {},
    "llama": {"tie_word_embeddings": True},
    "gemma2": WINDOWS | {"attn_logit_softcapping": 2.0},
    "qwen3_moe": {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 96, "norm_topk_prob": True},
    "gemma3": WINDOWS | {"tie_word_embeddings": True},
    "bloom": {"num_attention_heads": 2, "seq_length": 1024},
}
CACHES = {"llama": {"kv_cache_dtype": "int8"}, "gemma2": {"kv_cache_dtype": "fp8"}}
"""Of 8 bits, in some families' engines."""
KINDS = [
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.8, "top_p": 0.9, "seed": 2, "logprobs": 0},
    {"temperature": 1.3, "top_k": 40, "seed": 3, "n": 2},
    {"temperature": 0.0, "prompt_logprobs": 2},
    {"temperature": 0.9, "min_p": 0.02, "seed": 4, "presence_penalty": 0.7, "repetition_penalty": 1.1},
    {"temperature": 1.0, "seed": 5, "prompt_logprobs": 0, "logprobs": 1},
]
ALONE = {"threads": 1, "enable_prefix_caching": False}
SMALL_POOL = {"num_gpu_blocks_override": 140, "block_size": 4, "max_model_len": 336, "max_num_batched_tokens": 100}


def make_requests(num):
    """Prompts of 1 to 300 tokens, every third with one of two beginnings; parameters of all kinds."""
    rng = random.Random(0)
    shared = [[rng.randrange(3, VOCAB) for _ in range(150)] for _ in range(2)]
    requests = []
    for number in range(num):
        longest = rng.choice([8, 40, 150, 300])
        own = [rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, longest))]
        prompt = shared[number % 2][: rng.randrange(20, 150)] + own[:150] if number % 3 == 0 else own
        params = SamplingParams(max_tokens=rng.randrange(3, 20), ignore_eos=True, **KINDS[number % len(KINDS)])
        requests.append((prompt, params))
    return requests


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp(family), family, **SIZES, **FAMILIES[family])


def open_llm(folder, **options):
    defaults = {"dtype": "bfloat16", "max_model_len": 512, "max_num_seqs": 100, "max_num_batched_tokens": 2048}
    return LLM(str(folder), **(defaults | options))


def plain(positions):
    """Log-probabilities as numbers, which compare bit for bit."""
    return [
        position and [(token_id, found.logprob, found.rank) for token_id, found in position.items()]
        for position in positions or []
    ]


def answer(output):
    completions = [(c.token_ids, c.cumulative_logprob, plain(c.logprobs)) for c in output.outputs]
    return plain(output.prompt_logprobs), completions


def generate(llm, requests, batch):
    """The answers of all requests, so many at a time."""
    answers = []
    for first in range(0, len(requests), batch):
        prompts, params = zip(*requests[first : first + batch], strict=True)
        answers += [answer(output) for output in llm.generate(prompts, list(params), use_tqdm=False)]
    return answers


def assert_same(found, expected, requests):
    wrong = [number for number, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
    if wrong:
        first = wrong[0]
        details = f"{requests[first][1]}, prompt of {len(requests[first][0])}\n{found[first]}\n{expected[first]}"
        pytest.fail(f"{len(wrong)} of {len(found)} answers differ: {wrong[:20]}; the first: {details}")


class Proof:
    """A model, requests and their answers alone. `options`: of every engine, such as a quantization."""

    def __init__(self, folder, num, **options):
        self.folder, self.requests, self.options = folder, make_requests(num), options
        with self.open(**ALONE, enforce_eager=True) as llm:
            self.expected = generate(llm, self.requests, 1)

    def open(self, **options):
        return open_llm(self.folder, **self.options, **options)

    def holds(self, *batches, **options):
        """All requests, so many at a time, one engine for all."""
        with self.open(**options) as llm:
            for batch in batches:
                assert_same(generate(llm, self.requests, batch), self.expected, self.requests)
            return llm.llm_engine.stats()

    def holds_over_sleep(self, steps, **options):
        """All requests at once, asleep three times in the middle."""
        with self.open(enable_sleep_mode=True, **options) as llm:
            engine, batch = llm.llm_engine, len(self.requests)
            for number, (prompt, params) in enumerate(self.requests):
                engine.add_request(str(number), prompt, params)
            finished = {}
            for level in (1, 1, 0):
                for _ in range(steps):
                    finished |= {o.request_id: answer(o) for o in engine.step() if o.finished}
                engine.sleep(level, mode="keep")
                engine.wake_up()
            assert len(finished) < batch, "some are still running"
            while engine.has_unfinished_requests():
                finished |= {o.request_id: answer(o) for o in engine.step() if o.finished}
            found = [finished[str(number)] for number in range(batch)]
            assert_same(found, self.expected, self.requests)
            block_space_of(llm).check_conservation()


@pytest.fixture(scope="module")
def proof(family, folder):
    return Proof(folder, 28, batch_invariant=True, **CACHES.get(family, {}))


def test_batches(proof):
    proof.holds(2, 7, 28, **ALONE)


@pytest.mark.half
@pytest.mark.parametrize("chunk", [16, 100])
def test_chunks_with_a_prefix_cache_on_two_threads(proof, chunk):
    stats = proof.holds(28, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 100), threads=2)
    assert stats.prefix_cache_hits_total > 0


@pytest.mark.half
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preemption(proof, mode):
    assert proof.holds(28, **SMALL_POOL, preemption_mode=mode).num_preemptions > 0


def test_sleep_in_the_middle(proof):
    proof.holds_over_sleep(3, max_num_batched_tokens=300)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}, {"kv_cache_dtype": "int8"}], ids=str)
def test_two_hundred_requests(folder, options):
    if "kv_cache_dtype" in options and "Bloom" in (folder / "config.json").read_text():
        pytest.skip("positions beside keys have 16 bits")
    proof = Proof(folder, 200, batch_invariant=True, **options)
    for threads in (1, 2):
        proof.holds(2, 7, 32, 100, threads=threads)
        for caching in (False, True):
            for chunk in (16, 100, 2048):
                sizes = {"max_num_batched_tokens": chunk, "max_num_seqs": min(chunk, 100)}
                proof.holds(100, threads=threads, enable_prefix_caching=caching, **sizes)
        for mode in ("swap", "recompute"):
            assert proof.holds(200, **SMALL_POOL, preemption_mode=mode, threads=threads).num_preemptions > 0
        proof.holds_over_sleep(12, max_num_batched_tokens=300, threads=threads)
        proof.holds(100, enforce_eager=True, threads=threads)


@pytest.mark.parametrize("convert", ["embed", "rerank"])
def test_vectors_of_last_tokens(tmp_path, convert):
    """Embeddings, and scores by a head of few rows: alone, and in a batch with text, chunks and the prefix cache."""
    folder = write_checkpoint(tmp_path, "qwen3", **SIZES)
    add_words(folder, "yes", "no")
    prompts = [prompt for prompt, _ in make_requests(24)]
    options = {"dtype": "bfloat16", "max_model_len": 336, "convert": convert}
    with LLM(str(folder), **options, **ALONE) as llm:
        expected = [llm.encode([prompt], use_tqdm=False)[0].outputs.data for prompt in prompts]
        assert len({tuple(data) for data in expected}) == 24
    with LLM(str(folder), **options, max_num_batched_tokens=100, max_num_seqs=16) as llm:
        for number, (prompt, params) in enumerate(make_requests(8)):
            llm.llm_engine.add_request(f"text {number}", prompt, params)
        for _ in range(2):
            assert [output.outputs.data for output in llm.encode(prompts, use_tqdm=False)] == expected


def add_words(folder, *words):
    """Tokens that the vocabulary lacks."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab |= {word: len(vocab) + number for number, word in enumerate(words)}
    path.write_text(json.dumps(tokenizer))
