"""Sleep: memory is really released, addresses stay, conversations go on with the very next token."""

import subprocess
import sys

import pytest
import torch
from prompts import random_prompts

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, EngineAsleepError, InvalidRequestError, WakeUpError

OPTIONS = {"dtype": "float32", "max_model_len": 128, "enable_sleep_mode": True}
PROMPTS = random_prompts(8, 60)
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, n=3, max_tokens=40, ignore_eos=True),
    SamplingParams(n=3, beam_width=3, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, prompt_logprobs=1),
] * 2


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        return [[c.token_ids for c in o.outputs] for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.fixture
def llm(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        yield llm


def run_with_sleeps(llm, level, every):
    """All requests through the engine, with a sleep after every so many steps."""
    engine = llm.llm_engine
    for number, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        engine.add_request(str(number), prompt, params)
    ended, steps = {}, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                ended[output.request_id] = [c.token_ids for c in output.outputs]
        steps += 1
        if steps % every == 0:
            llm.sleep(level)
            llm.wake_up()
    return [ended[str(number)] for number in range(len(PROMPTS))]


@pytest.mark.parametrize("options", [{}, {"num_gpu_blocks_override": 40, "preemption_mode": "swap", "block_size": 8}])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_running_requests_go_on_with_the_next_token(qwen3_folder, expected, level, options):
    with LLM(str(qwen3_folder), **OPTIONS, **options) as llm:
        assert run_with_sleeps(llm, level, every=7) == expected
        assert llm.llm_engine.stats().num_used_blocks == 0


def test_keep_recomputes_nothing(llm):
    engine = llm.llm_engine
    engine.add_request("x", PROMPTS[1], PARAMS[0])
    engine.step()
    llm.sleep(1)
    llm.wake_up()
    plan = engine._scheduler.plan()
    assert [len(span.token_ids) for span in plan.spans] == [1]
    engine._scheduler.apply(plan, engine.model_executor.execute_model(plan))
    llm.llm_engine.abort_request("x")
    engine.step()


def test_addresses_and_weights_come_back(llm):
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    before = {name: (p.data_ptr(), p.clone()) for name, p in model.named_parameters()}
    for level in (1, 2, 1):
        llm.sleep(level)
        assert all(not p.any() for p in model.parameters()), "released memory reads as zeros"
        llm.wake_up()
        for name, parameter in model.named_parameters():
            assert parameter.data_ptr() == before[name][0]
            assert torch.equal(parameter, before[name][1])


def test_while_asleep_work_is_refused_and_nothing_lost(llm, expected):
    engine = llm.llm_engine
    engine.add_request("kept", PROMPTS[0], PARAMS[0])
    engine.step()
    report = llm.sleep()
    assert llm.is_sleeping and llm.sleeping_tags == ("weights", "kv_cache")
    assert report.backed_up_bytes > 0 and report.seconds > 0
    with pytest.raises(EngineAsleepError, match="wake_up"):
        llm.generate("x", use_tqdm=False)
    with pytest.raises(EngineAsleepError):
        engine.step()
    assert llm.sleep().tags == (), "idempotent"
    llm.wake_up(tags=["weights"])
    assert llm.sleeping_tags == ("kv_cache",)
    with pytest.raises(EngineAsleepError):
        engine.step()
    llm.wake_up(tags=["kv_cache"])
    llm.wake_up()
    assert not llm.is_sleeping
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert outputs[-1].outputs[0].token_ids == expected[0][0]


def test_modes_wait_and_abort(llm, expected):
    engine = llm.llm_engine
    engine.add_request("a", PROMPTS[0], PARAMS[0])
    llm.sleep(1, mode="wait")
    llm.wake_up()
    assert engine.step()[-1].outputs[0].token_ids == expected[0][0]
    engine.add_request("b", PROMPTS[0], PARAMS[0])
    llm.sleep(1, mode="abort")
    [output] = engine.step()
    assert output.outputs[0].finish_reason == "abort"
    llm.wake_up()
    assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS[0], PARAMS[0], use_tqdm=False)] == expected[0]


def test_a_changed_checkpoint_is_found_and_the_engine_stays_asleep(llm, monkeypatch, expected):
    runner = llm.llm_engine.model_executor.driver_worker.model_runner
    fill = runner.fill_weights

    def fill_with_a_flipped_byte():
        fill()
        runner.model.lm_head.weight.view(-1)[5].neg_()

    llm.sleep(1)
    monkeypatch.setattr(runner, "fill_weights", fill_with_a_flipped_byte)
    with pytest.raises(WakeUpError, match="lm_head"):
        llm.wake_up()
    assert llm.sleeping_tags == ("weights", "kv_cache")
    with pytest.raises(EngineAsleepError):
        llm.generate("x", use_tqdm=False)
    monkeypatch.undo()
    llm.wake_up()
    assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS[0], PARAMS[0], use_tqdm=False)] == expected[0]


def test_a_damaged_backup_is_found(llm):
    engine = llm.llm_engine
    engine.add_request("x", PROMPTS[0], PARAMS[0])
    engine.step()
    llm.sleep(1)
    file = engine.model_executor.driver_worker._sleeper._backup._file
    file.seek(100)
    byte = file.read(1)
    file.seek(100)
    file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(WakeUpError, match="damaged"):
        llm.wake_up()
    assert llm.sleeping_tags == ("kv_cache",)
    engine.abort_request("x")
    engine.step()


def test_a_full_disk_leaves_the_engine_awake(llm, monkeypatch, expected):
    engine = llm.llm_engine
    engine.add_request("x", PROMPTS[0], PARAMS[0])
    engine.step()

    def no_space(self, tensors):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lullm.arena.backup.Backup.save", no_space)
    with pytest.raises(OSError, match="No space"):
        llm.sleep(1)
    assert not llm.is_sleeping
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert outputs[-1].outputs[0].token_ids == expected[0][0]


def test_misuse(llm, qwen3_folder):
    for arguments, param in (({"level": 3}, "level"), ({"mode": "x"}, "mode"), ({"tags": ["graphs"]}, "tags")):
        with pytest.raises(InvalidRequestError) as error:
            llm.sleep(**arguments)
        assert error.value.param == param
    with pytest.raises(InvalidRequestError):
        llm.wake_up(tags=["x"])
    assert not llm.is_sleeping
    with LLM(str(qwen3_folder), max_model_len=64) as other, pytest.raises(ConfigError, match="enable_sleep_mode"):
        other.sleep()


def test_two_engines_sleep_on_their_own(qwen3_folder, llama_folder):
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with LLM(str(qwen3_folder), **OPTIONS) as one, LLM(str(llama_folder), **OPTIONS) as two:
        engines = (one, two)
        truth = [llm.generate("hello", params, use_tqdm=False)[0].outputs for llm in engines]
        for turn in range(6):
            engines[turn % 2].sleep(1 + turn % 3 // 2)
            awake = engines[1 - turn % 2]
            assert awake.generate("hello", params, use_tqdm=False)[0].outputs == truth[1 - turn % 2]
            engines[turn % 2].wake_up()
            assert engines[turn % 2].generate("hello", params, use_tqdm=False)[0].outputs == truth[turn % 2]


MEASURE = """
import json, sys
from pathlib import Path
from lullm import LLM, SamplingParams
from lullm.worker.device import resident_bytes

config = dict(architectures=["Qwen3ForCausalLM"], vocab_size=2048, hidden_size=1024, intermediate_size=4096,
    num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=8, head_dim=128, max_position_embeddings=2048,
    tie_word_embeddings=True, torch_dtype="bfloat16", eos_token_id=0)
folder = Path(sys.argv[1])
(folder / "config.json").write_text(json.dumps(config))
llm = LLM(str(folder), tokenizer="demo", load_format="dummy", enable_sleep_mode=True, max_model_len=256,
    enable_prefix_caching=False)
params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
prompts = [[3 + i] * 100 for i in range(16)]
truth = [o.outputs for o in llm.generate(prompts, params, use_tqdm=False)]
arenas = llm.llm_engine.model_executor.driver_worker.model_runner.arenas
weights = next(a.used_bytes for a in arenas if a.tag == "weights")
kv = 16 * 7 * 16 * 2 * 6 * 8 * 128 * 2  # blocks of the run x tokens x layers
awake = resident_bytes()
asleep = []
for cycle in range(20):
    llm.sleep(1 + cycle % 2)
    asleep.append(resident_bytes())
    llm.wake_up()
    if cycle % 5 == 0:
        assert [o.outputs for o in llm.generate(prompts, params, use_tqdm=False)] == truth
print(json.dumps(dict(weights=weights, kv=kv, awake=awake, asleep=asleep, after=resident_bytes())))
"""


def test_resident_memory_really_falls(tmp_path):
    import json

    result = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    held = found["weights"] + found["kv"]
    assert found["awake"] - max(found["asleep"]) >= 0.95 * held
    # The first runs fill torch's own caches; after them a cycle leaves nothing behind.
    assert found["asleep"][-1] - found["asleep"][10] < 0.10 * held
    assert found["after"] <= found["awake"] + 0.02 * held
