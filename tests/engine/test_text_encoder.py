"""Texts that an encoder reads in a whole engine: transformers' tokens, whatever else the engine does meanwhile."""

import pytest
from kit.engine.parts import block_space_of, executor_of, runner_of
from kit.engine.same_tokens import check_continued
from kit.engine.scenes import WAYS, asleep_meanwhile, check_preempted
from kit.model.bart import write_bart

from lullm import LLM, SamplingParams
from lullm.errors import InvalidRequestError

OPTIONS = {"dtype": "float32", "max_model_len": 64, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
NUM_TOKENS = 10
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
GIVEN = ([0, 5, 6, 7, 99, 2], [9], [0, *range(30, 78), 2], [0, 5, 6, 7, 99, 3, 4, 2])
STARTS = ([2], [2, 0], [2, 0, *range(14, 30)], [2, 7])


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    return write_bart(tmp_path_factory.mktemp("bart"))


@pytest.fixture(scope="module")
def expected(bart):
    return [bart.continued(given, ids, NUM_TOKENS) for given, ids in zip(GIVEN, STARTS, strict=True)]


PROMPTS = [
    {"encoder_prompt": {"prompt_token_ids": given}, "decoder_prompt": ids}
    for given, ids in zip(GIVEN, STARTS, strict=True)
]


OWN_WAYS = WAYS | {"chunks": {"max_num_batched_tokens": 12, "max_num_seqs": 4}}


@pytest.mark.parametrize("options", OWN_WAYS.values(), ids=OWN_WAYS)
def test_as_transformers(bart, expected, options):
    with LLM(str(bart.folder), **OPTIONS | options) as llm:
        for _ in range(2):  # the second time from cached blocks
            check_continued(STARTS, llm.generate(PROMPTS, GREEDY, use_tqdm=False), expected)
        block_space_of(llm).check_conservation()
        if not options:
            assert runner_of(llm).graphs.refusal is None and runner_of(llm).graphs.sizes


def test_scaled_embeddings(tmp_path):
    bart = write_bart(tmp_path, 3, scale_embedding=True, activation_function="relu")
    with LLM(str(tmp_path), **OPTIONS) as llm:
        check_continued(
            STARTS, llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False), [bart.continued(GIVEN[0], STARTS[0], NUM_TOKENS)]
        )


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption(bart, expected, mode):
    options = {"num_gpu_blocks_override": 56, "block_size": 2, "max_num_batched_tokens": 24, "max_num_seqs": 8}
    options |= {"max_model_len": 40, "watermark": 0.0}
    with LLM(str(bart.folder), **OPTIONS | options, preemption_mode=mode) as llm:
        check_continued(STARTS, llm.generate(PROMPTS * 2, GREEDY, use_tqdm=False), expected * 2)
        check_preempted(llm)


def test_sleep_in_the_middle_of_texts(bart, expected):
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "enable_sleep_mode": True}
    with LLM(str(bart.folder), **OPTIONS | options) as llm:
        outputs = asleep_meanwhile(llm, PROMPTS, GREEDY, {"level": 2}, {"level": 1})
        check_continued(STARTS, outputs, expected)


def test_a_text_is_read_once_and_no_longer_one_in_its_place(bart):
    """Two texts of which one begins as the other: rows see all of a text, so that no block is shared."""
    with LLM(str(bart.folder), **OPTIONS) as llm:
        sent = []
        launch = executor_of(llm).launch_model
        executor_of(llm).launch_model = lambda plan: sent.extend(plan.tiles) or launch(plan)
        for given in ([0, *range(30, 60)], [0, *range(30, 60)], [0, *range(30, 61)]):
            prompt = {"encoder_prompt": {"prompt_token_ids": given}, "decoder_prompt": STARTS[2]}
            [output] = llm.generate(prompt, GREEDY, use_tqdm=False)
            assert list(output.outputs[0].token_ids) == bart.continued(given, STARTS[2], NUM_TOKENS)[0]
        assert len(sent) == 2 and output.num_cached_tokens == 0


def test_forms_of_prompts(bart):
    with LLM(str(bart.folder), **OPTIONS) as llm:
        text = "hello world"
        ids = llm.get_tokenizer().encode(text)
        same = [
            text,
            {"prompt": text},
            ids,
            {"prompt_token_ids": ids, "cache_salt": "a"},
            {"encoder_prompt": text, "decoder_prompt": None},
            {"encoder_prompt": {"prompt": text, "cache_salt": "b"}, "decoder_prompt": [2, 0]},
            {"encoder_prompt": ids, "decoder_prompt": {"prompt_token_ids": [2, 0]}},
        ]
        tokens, _ = bart.continued(ids, [2, 0], NUM_TOKENS)
        for output in llm.generate(same, GREEDY, use_tqdm=False):
            assert output.prompt_token_ids == [2, 0] and list(output.outputs[0].token_ids) == tokens
        [begun] = llm.generate({"encoder_prompt": text, "decoder_prompt": "fox"}, GREEDY, use_tqdm=False)
        assert begun.prompt_token_ids == llm.get_tokenizer().encode("fox")
        for prompt, reason in [
            ("", "is empty"),
            ([5] * 65, "from 1 to 64 tokens, not 65"),
            ([320], "ids that are not from 0 to 319"),
            ({"encoder_prompt": None, "decoder_prompt": text}, "encoder_prompt is missing"),
            ({"encoder_prompt": text, "prompt": text}, "encoder_prompt and decoder_prompt only"),
            ({"encoder_prompt": {"prompt_token_ids": 5}, "decoder_prompt": text}, "list of token ids"),
            ({"prompt": text, "multi_modal_data": {"audio": [0.0]}}, "takes no sounds"),
        ]:
            with pytest.raises(InvalidRequestError, match=reason):
                llm.generate(prompt, GREEDY, use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="no conversation"):
            llm.chat([{"role": "user", "content": text}], GREEDY, use_tqdm=False)
