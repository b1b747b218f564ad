"""Prompt adapters: their rows stand before the prompt, as transformers computes them with `inputs_embeds`."""

import json

import pytest
import torch
from kit.engine.parts import block_space_of
from kit.engine.prompts import random_prompts
from kit.engine.same_tokens import tokens_of
from kit.engine.scenes import GUESSING, WAYS
from kit.folder.checkpoint import write_tokenizer
from kit.model.golden import SIZES, random_model, save
from kit.model.lora import write_adapter
from kit.model.prompt_adapter import write_prompt_adapter
from kit.worker.threads import use_threads

from lullm import LLM, LoRARequest, PoolingParams, PromptAdapterRequest, SamplingParams
from lullm.errors import ConfigError, InvalidRequestError, ModelLoadError

SIZE = 48
OPTIONS = {
    "dtype": "float32", "max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 64,
    "enable_prompt_adapter": True,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = random_prompts(4, 40)
LENGTHS = (20, 5, None, 20)
"""Rows before each prompt."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """(folder, transformers' model)."""
    folder = tmp_path_factory.mktemp("model")
    model = random_model("Qwen3", SIZES | {"vocab_size": 320, "max_position_embeddings": 256})
    save(model, folder)
    write_tokenizer(folder)
    return folder, model


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """(request, rows) by their number."""
    root, found = tmp_path_factory.mktemp("adapters"), {}
    for number, kind in ((20, "PROMPT_TUNING"), (5, "P_TUNING")):
        rows = write_prompt_adapter(root / str(number), number, SIZE, number, peft_type=kind)
        found[number] = PromptAdapterRequest(f"rows-{number}", number, str(root / str(number)), number), rows
    return found


@pytest.fixture(scope="module")
def requests(adapters):
    return [None if number is None else adapters[number][0] for number in LENGTHS]


@pytest.fixture(scope="module")
def expected(model, adapters):
    """transformers' tokens."""
    found = []
    for prompt, number in zip(PROMPTS, LENGTHS, strict=True):
        with torch.inference_mode():
            rows = model[1].get_input_embeddings()(torch.tensor(prompt))
            rows = rows if number is None else torch.cat([adapters[number][1], rows])
            mask = torch.ones(1, len(rows), dtype=torch.long)
            options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
            found.append([model[1].generate(inputs_embeds=rows[None], attention_mask=mask, **options)[0].tolist()])
    return found


def generate(llm, prompts=PROMPTS, adapters=None, params=GREEDY):
    return tokens_of(llm.generate(prompts, params, use_tqdm=False, prompt_adapter_request=adapters))


OWN_WAYS = (
    WAYS
    | GUESSING
    | {
        "few blocks": {"max_prompt_adapters": 1, "num_gpu_blocks_override": 20, "max_model_len": 80},
        "tp": {"tensor_parallel_size": 2},
        "pp": {"pipeline_parallel_size": 2},
    }
)


@pytest.mark.parametrize("options", OWN_WAYS.values(), ids=OWN_WAYS)
def test_as_transformers(model, requests, expected, options, monkeypatch):
    use_threads(monkeypatch)
    with LLM(str(model[0]), **OPTIONS | options) as llm:
        for _ in range(2):
            assert generate(llm, adapters=requests) == expected
        block_space_of(llm).check_conservation()


def test_the_output_names_rows_as_vllm_does(model, requests, expected):
    with LLM(str(model[0]), **OPTIONS) as llm:
        [output] = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False, prompt_adapter_request=requests[0])
        assert output.prompt_token_ids == [0] * 20 + PROMPTS[0]
        [again] = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False, prompt_adapter_request=requests[0])
        assert again.num_cached_tokens == (20 + len(PROMPTS[0]) - 1) // 8 * 8
        assert llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)[0].num_cached_tokens == 0
        asked = [{"role": "user", "content": "hello"}]
        [chat] = llm.chat(asked, GREEDY, use_tqdm=False, prompt_adapter_request=requests[1])
        assert (
            chat.prompt_token_ids[:5] == [0] * 5
            and chat.prompt_token_ids[5:] == llm.chat(asked, GREEDY, use_tqdm=False)[0].prompt_token_ids
        )
        ids = llm.enqueue(PROMPTS[0], GREEDY, prompt_adapter_request=requests[0])
        assert len(ids) == 1 and tokens_of(llm.wait_for_completion(use_tqdm=False)) == expected[:1]
        [beams] = llm.beam_search(PROMPTS[0], 1, 12, ignore_eos=True, prompt_adapter_request=requests[0])
        assert [beams.outputs[0].token_ids] == expected[0]
        cut = GREEDY.replace(truncate_prompt_tokens=3)
        [short] = llm.generate(PROMPTS[0], cut, use_tqdm=False, prompt_adapter_request=requests[1])
        assert short.prompt_token_ids == [0] * 5 + PROMPTS[0][-3:]
        longest = [5] * 200
        [most] = llm.generate(longest, cut.replace(truncate_prompt_tokens=-1), prompt_adapter_request=requests[1])
        assert len(most.prompt_token_ids) == 128 - 12


def test_rows_before_rows_and_a_lora_adapter(model, adapters, tmp_path):
    """A prompt adapter goes with everything else that a request says."""
    request, rows = adapters[5]
    lora = LoRARequest("lora", 1, str(write_adapter(tmp_path / "lora", model[0])))
    table = model[1].get_input_embeddings().weight.detach()
    options = OPTIONS | {"enable_prompt_embeds": True, "enable_lora": True, "max_lora_rank": 8}
    with LLM(str(model[0]), **options) as llm:
        together = {"prompt_embeds": torch.cat([rows, table[PROMPTS[0]]])}
        for own in (None, lora):
            given = {"use_tqdm": False, "lora_request": own}
            whole = tokens_of(llm.generate(together, GREEDY, **given))
            before = {"prompt_embeds": table[PROMPTS[0]]}
            for prompt in (PROMPTS[0], before):
                assert tokens_of(llm.generate(prompt, GREEDY, prompt_adapter_request=request, **given)) == whole
            assert tokens_of(llm.generate(PROMPTS[0], GREEDY, **given)) != whole


def test_the_life_of_an_adapter(model, requests, expected, tmp_path):
    rows = write_prompt_adapter(tmp_path / "own", 5, SIZE, seed=9)
    own = PromptAdapterRequest("own", 77, tmp_path / "own")
    with LLM(str(model[0]), **OPTIONS, max_prompt_adapters=1) as llm:
        engine = llm.llm_engine
        assert engine.add_prompt_adapter(own) and not engine.add_prompt_adapter(own)
        first = generate(llm, PROMPTS[:1], own)
        assert generate(llm, adapters=requests) == expected  # the rows of `own` leave memory
        assert engine.list_prompt_adapters() == {5, 20, 77}
        assert generate(llm, PROMPTS[:1], own) == first
        with pytest.raises(InvalidRequestError, match="prompt_adapter_id 77 is the adapter 'own'"):
            generate(llm, PROMPTS[:1], PromptAdapterRequest("other", 77, str(tmp_path)))
        generate(llm, PROMPTS[:1], requests[0])
        write_prompt_adapter(tmp_path / "own", 5, SIZE, tensors={"prompt_embeddings": rows + 1})
        with pytest.raises(InvalidRequestError, match="has changed since it was added; remove the adapter"):
            generate(llm, PROMPTS[:1], own)
        assert engine.remove_prompt_adapter(77) and not engine.remove_prompt_adapter(77)
        assert generate(llm, PROMPTS[:1], own) != first


REFUSED = [
    ({"peft_type": "PREFIX_TUNING"}, "'PREFIX_TUNING'.* keys and values of every layer"),
    ({"peft_type": "LORA"}, "'LORA'.* given as a lora_request"),
    ({"peft_type": "IA3"}, "PROMPT_TUNING or P_TUNING$"),
    ({"peft_type": "MULTITASK_PROMPT_TUNING"}, "depend on a task"),
    ({"peft_type": None}, "None"),
    ({"task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS'"),
    ({"num_transformer_submodules": 2}, "an encoder and a decoder"),
    ({"modules_to_save": ["head"]}, "nothing is known about 'modules_to_save'"),
    ({"num_virtual_tokens": 6}, "prompt_embeddings is 5 x 48, and num_virtual_tokens 6"),
    ({"num_virtual_tokens": 0}, "from 1 to"),
    ({"num_virtual_tokens": 127}, "no room for a prompt"),
    ({"num_virtual_tokens": 30}, "more than max_prompt_adapter_token=24"),
    ({"tensors": {"prompt_embeddings": torch.zeros(5, 7)}}, "T, 48.* not 5 x 7"),
    ({"tensors": {"prompt_embeddings": torch.full((5, 48), torch.inf)}}, "finite"),
    ({"tensors": {"prompt_embeddings": torch.zeros(5, 48, dtype=torch.int8)}}, "type I8"),
    ({"tensors": {"prompt_embeddings": torch.zeros(9000, 48)}}, "more than rows of this model take"),
    ({"tensors": {"other": torch.zeros(5, 48)}}, "has other, not prompt_embeddings alone"),
    ({"tensors": {}}, "has no tensors"),
]


@pytest.fixture(scope="module")
def llm(model):
    with LLM(str(model[0]), **OPTIONS, max_prompt_adapter_token=24) as llm:
        yield llm


@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_folders_that_are_no_prompt_adapters(llm, tmp_path, settings, words):
    write_prompt_adapter(tmp_path, 5, SIZE, **settings)
    request = PromptAdapterRequest("wrong", 3, str(tmp_path))
    with pytest.raises(ModelLoadError, match=words):
        llm.llm_engine.add_prompt_adapter(request)
    with pytest.raises(InvalidRequestError, match=words):
        generate(llm, PROMPTS[:1], request)


def test_files_that_are_missing_or_pickles(llm, tmp_path):
    request = PromptAdapterRequest("wrong", 3, str(tmp_path))
    with pytest.raises(InvalidRequestError, match="has no adapter_config.json; a prompt adapter is"):
        generate(llm, PROMPTS[:1], request)
    write_prompt_adapter(tmp_path, 5, SIZE)
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InvalidRequestError, match="damaged"):
        generate(llm, PROMPTS[:1], request)
    weights.rename(tmp_path / "adapter_model.bin")
    with pytest.raises(InvalidRequestError, match="adapter_model.bin is a pickle.* never read"):
        generate(llm, PROMPTS[:1], request)
    (tmp_path / "adapter_config.json").write_text(json.dumps([]))
    with pytest.raises(InvalidRequestError, match="adapter_config.json"):
        generate(llm, PROMPTS[:1], request)


def test_requests_that_cannot_be(llm, requests):
    def fails(words, prompt=PROMPTS[1], adapter=requests[0], params=GREEDY):
        with pytest.raises(InvalidRequestError, match=words):
            llm.generate(prompt, params, use_tqdm=False, prompt_adapter_request=adapter)

    fails("prompt_logprobs are of token ids", params=GREEDY.replace(prompt_logprobs=0))
    fails("the prompt is empty", prompt={"prompt_token_ids": []})
    fails("too long: 138 tokens", prompt=[5] * 118)
    fails("must be PromptAdapterRequest or a list", adapter="rows")
    fails("2 prompt_adapter_request for 1 prompts", adapter=requests[:2])
    other = PromptAdapterRequest("rows", 9, requests[0].path, 21)
    fails("has 20 rows, not 21 .prompt_adapter_num_virtual_tokens", adapter=other)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("", 1, "/a"), "prompt_adapter_name"),
        (("a" * 257, 1, "/a"), "257 characters"),
        (("a", 0, "/a"), "prompt_adapter_id must be an integer from 1"),
        (("a", 1, ""), "prompt_adapter_local_path"),
        (("a", 1, "/a", -1), "prompt_adapter_num_virtual_tokens"),
    ],
)
def test_fields_of_a_request(arguments, words):
    with pytest.raises(InvalidRequestError, match=words):
        PromptAdapterRequest(*arguments)


def test_engines_without_them(model, requests):
    with pytest.raises(ConfigError, match="max_prompt_adapters needs enable_prompt_adapter=True"):
        LLM(str(model[0]), max_prompt_adapters=3)
    with LLM(str(model[0]), **OPTIONS | {"enable_prompt_adapter": False}) as llm:
        for call in (lambda: generate(llm, PROMPTS, requests), lambda: llm.llm_engine.remove_prompt_adapter(1)):
            with pytest.raises(InvalidRequestError, match="enable_prompt_adapter=True"):
                call()
    error = pytest.raises(InvalidRequestError, match="for next tokens")
    with LLM(str(model[0]), **OPTIONS, convert="embed", runner="pooling") as llm, error:
        llm.llm_engine.add_request("a", "hello", PoolingParams(), prompt_adapter_request=requests[0])
