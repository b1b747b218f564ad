"""Weights that a trainer changes: what generate reports equals the trainer's own forward pass, whatever is between."""

import copy

import pytest
import torch
from kit.engine.parts import model_of
from kit.engine.prompts import random_prompts

from lullm import LLM, SamplingParams
from lullm.errors import EngineAsleepError, InvalidRequestError, ModelLoadError, UnsupportedError

OPTIONS = {"dtype": "float32", "max_model_len": 128, "enable_sleep_mode": True}
PROMPTS = random_prompts(4, 60)
PARAMS = SamplingParams(temperature=1.0, seed=5, max_tokens=12, ignore_eos=True, logprobs=0, prompt_logprobs=0)


@pytest.fixture(scope="module", params=["qwen3_folder", "llama_folder"])
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def loaded(folder):
    from transformers import AutoModelForCausalLM

    with LLM(str(folder), **OPTIONS) as llm:
        yield llm, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture
def llm(loaded):
    llm, _ = loaded
    yield llm
    for request_id in llm.llm_engine.unfinished_request_ids():
        llm.llm_engine.abort_request(request_id, wants_output=False)
    llm.wake_up()
    llm.collective_rpc("reload_weights")


@pytest.fixture
def trainer(loaded):
    """A copy of the checkpoint's model in transformers, to be trained."""
    return copy.deepcopy(loaded[1])


def train(model, seed=0):
    """What a training step does to all weights, as far as an engine is concerned."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * parameter.std().nan_to_num(1.0) * torch.randn_like(parameter))


def push(llm, model):
    """Tensor by tensor, under transformers' names."""
    for name, parameter in model.named_parameters():
        model_of(llm).load_weights([(name, parameter.data)])


def assert_same_logprobs(llm, model):
    """Of the prompt and of what is drawn, against a forward pass over all of it."""
    for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False):
        [completion] = output.outputs
        ids = output.prompt_token_ids + list(completion.token_ids)
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        wanted = [logprobs[i, token].item() for i, token in enumerate(ids[1:])]
        found = [next(iter(entry.values())).logprob for entry in (*output.prompt_logprobs[1:], *completion.logprobs)]
        assert max(abs(a - b) for a, b in zip(wanted, found, strict=True)) < 1e-4


def test_a_push_tensor_by_tensor(llm, trainer):
    assert_same_logprobs(llm, trainer)
    train(trainer)
    push(llm, trainer)
    assert_same_logprobs(llm, trainer)
    [modified] = llm.collective_rpc("modified_weights")
    assert modified == sorted(name for name, _ in model_of(llm).named_parameters())
    train(trainer, 1)
    assert llm.update_weights(trainer.named_parameters()) == len(list(trainer.parameters()))
    assert_same_logprobs(llm, trainer)


def test_the_cycle_of_a_colocated_trainer(llm, trainer):
    """Level 2 between the turns; the reload that trainers ask for after their push must not undo it."""
    addresses = {name: p.data_ptr() for name, p in model_of(llm).named_parameters()}
    for turn in range(2):
        llm.sleep(level=2)
        train(trainer, turn)
        llm.wake_up(tags=["weights"])
        push(llm, trainer)
        assert llm.reset_prefix_cache()
        llm.wake_up(tags=["weights"])
        llm.collective_rpc("reload_weights")
        llm.wake_up(tags=["kv_cache"])
        assert_same_logprobs(llm, trainer)
    assert {name: p.data_ptr() for name, p in model_of(llm).named_parameters()} == addresses


def test_a_reload_is_a_reload(llm, trainer, loaded):
    train(trainer)
    push(llm, trainer)
    assert llm.collective_rpc("reload_weights") == [None]
    assert_same_logprobs(llm, loaded[1])
    assert llm.collective_rpc("modified_weights") == [[]]
    push(llm, trainer)
    llm.sleep(level=2)
    llm.wake_up()
    assert_same_logprobs(llm, loaded[1])


@pytest.mark.parametrize("backup", ["ram", "disk"])
def test_changed_weights_survive_level_1(llm, trainer, backup):
    train(trainer)
    pushed = [(name, p) for name, p in trainer.named_parameters() if "layers.1." in name or "layers.2." in name]
    llm.update_weights(pushed)
    with torch.no_grad():
        before = {name: p.clone() for name, p in model_of(llm).named_parameters()}
    [changed] = llm.collective_rpc("modified_weights")
    version = llm.collective_rpc("weights_version")
    for _ in range(2):
        report = llm.sleep(1, backup=backup)
        assert report.backed_up_bytes == sum(before[name].nbytes for name in changed) > 0
        llm.wake_up()
        assert all(torch.equal(p, before[name]) for name, p in model_of(llm).named_parameters())
    assert llm.collective_rpc("modified_weights") == [changed]
    assert llm.collective_rpc("weights_version") == version, "nothing changed"


def test_requests_that_run_during_an_update(llm, trainer):
    """They keep their tokens, and their KV is that of the new weights."""
    engine = llm.llm_engine
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    engine.add_request("x", PROMPTS[1], params)
    for _ in range(8):
        outputs = engine.step()
    first = list(outputs[-1].outputs[0].token_ids)
    train(trainer)
    push(llm, trainer)
    while engine.has_unfinished_requests():
        outputs = engine.step()
    found = list(outputs[-1].outputs[0].token_ids)
    assert found[: len(first)] == first
    rest = params.replace(max_tokens=20 - len(first))
    continued = llm.generate([[*PROMPTS[1], *first]], rest, use_tqdm=False)[0].outputs[0].token_ids
    assert found[len(first) :] == list(continued)


@pytest.mark.parametrize("backup", ["ram", "disk"])
def test_kv_of_old_weights_is_not_brought_back(llm, trainer, backup):
    engine = llm.llm_engine
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    engine.add_request("x", PROMPTS[1], params)
    for _ in range(8):
        outputs = engine.step()
    first = list(outputs[-1].outputs[0].token_ids)
    llm.sleep(1, backup=backup, keep_prefix_cache=True)
    llm.wake_up(tags=["weights"])
    train(trainer)
    push(llm, trainer)
    assert llm.wake_up(tags=["kv_cache"]).restored_bytes == 0
    while engine.has_unfinished_requests():
        outputs = engine.step()
    rest = params.replace(max_tokens=20 - len(first))
    [output] = llm.generate([[*PROMPTS[1], *first]], rest, use_tqdm=False)
    assert list(outputs[-1].outputs[0].token_ids) == first + list(output.outputs[0].token_ids)


def test_the_prefix_cache_is_that_of_one_version(llm, trainer):
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    prompt = list(range(3, 100))
    cached = []
    for name in ("model.norm.weight", None):
        for _ in range(2):
            cached.append(llm.generate(prompt, params, use_tqdm=False)[0].num_cached_tokens)
        if name:
            model_of(llm).load_weights([(name, trainer.state_dict()[name])])
    assert cached[0] == cached[2] == 0 < cached[1] == cached[3]


def test_names_that_trainers_wrap(llm, trainer):
    train(trainer)
    wrapped = {
        "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight": "model.layers.0.self_attn.q_proj.weight",
        "module.model.layers.0._checkpoint_wrapped_module.mlp.up_proj.weight": "model.layers.0.mlp.up_proj.weight",
        "_orig_mod.model.norm.weight": "model.norm.weight",
        "base_model.model.model.embed_tokens.modules_to_save.default.weight": "model.embed_tokens.weight",
        "model._fsdp_wrapped_module.layers.1._fsdp_wrapped_module.mlp.down_proj.weight": (
            "model.layers.1.mlp.down_proj.weight"
        ),
    }
    state = trainer.state_dict()
    assert model_of(llm).load_weights((w, state[name]) for w, name in wrapped.items()) == set(wrapped.values())
    rest = {name: tensor for name, tensor in state.items() if name not in wrapped.values()}
    llm.update_weights(rest.items())
    assert_same_logprobs(llm, trainer)


def test_other_types_are_converted(llm, trainer):
    for name, parameter in trainer.named_parameters():  # not the buffers, which would lose digits
        rounded = parameter.data.to(torch.bfloat16)
        parameter.data = rounded.float()
        model_of(llm).load_weights([(name, rounded)])
    assert_same_logprobs(llm, trainer)


def test_a_push_that_fails_says_what_it_did(llm, trainer, loaded):
    train(trainer)
    names = ["model.norm.weight", "model.layers.0.self_attn.k_proj.weight"]
    state = {name: trainer.state_dict()[name] for name in names}
    for wrong, words in [
        (("model.layers.0.self_attn.v_proj.weight", torch.ones(3, 64)), r"has shape \[3, 64\]"),
        (("model.layers.9.mlp.up_proj.weight", torch.ones(1)), "unexpected tensor model.layers.9"),
        (("model.norm.weight", torch.ones(64, dtype=torch.int8)), "int8"),
        (("base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight", torch.ones(1)), "push merged weights"),
    ]:
        with pytest.raises(ModelLoadError, match=words) as error:
            llm.update_weights([*state.items(), wrong])
        assert f"2 tensors before it were replaced and stay so: {', '.join(names)}" in str(error.value)
        with pytest.raises(ModelLoadError, match="No weight was replaced"):
            llm.update_weights([wrong])

    for wrong, words in [
        ((3, state[names[0]]), "pairs of a name and a tensor: int and "),
        (names[0], "str is none; of a state dict give its items"),
        ((names[0], torch.empty(64, device="meta")), "model.norm.weight is on the meta device"),
    ]:
        with pytest.raises(InvalidRequestError, match=words) as error:
            llm.update_weights([*state.items(), wrong])
        assert "2 tensors before it were replaced" in error.value.__notes__[0]

    def broken():
        yield from state.items()
        with pytest.raises(InvalidRequestError, match="cannot call it"):
            llm.generate("hello", use_tqdm=False)  # its matrices are half-written, and one is not packed
        raise RuntimeError("the trainer fell over")

    with pytest.raises(RuntimeError, match="fell over") as caught:
        llm.update_weights(broken())
    assert "2 tensors before it were replaced" in caught.value.__notes__[0]
    mixed = copy.deepcopy(loaded[1])
    mixed.load_state_dict(state, strict=False)
    assert_same_logprobs(llm, mixed)


def test_pushing_while_the_weights_sleep_is_refused(llm, trainer):
    name, tensor = "model.norm.weight", trainer.state_dict()["model.norm.weight"]
    for level in (1, 2):
        llm.sleep(level)
        for call in (
            lambda: model_of(llm).load_weights([(name, tensor)]),
            lambda: llm.update_weights([(name, tensor)]),
            lambda: llm.collective_rpc("reload_weights"),
            lambda: llm.collective_rpc(lambda worker: worker.update_weights([(name, tensor)])),
        ):
            with pytest.raises(EngineAsleepError, match="weights are asleep"):
                call()
        assert not any(p.any() for p in model_of(llm).parameters()), "nothing was written"
        llm.wake_up()


def test_calls_to_workers(llm):
    assert llm.collective_rpc(lambda worker, a, b: (type(worker).__name__, a, b), args=(1,), kwargs={"b": 2}) == [
        ("Worker", 1, 2)
    ]
    [memory] = llm.collective_rpc("resident_bytes")
    assert memory["weights"] >= sum(p.nbytes for p in model_of(llm).parameters())
    with pytest.raises(InvalidRequestError, match="reload_weights.* or pass a function") as error:
        llm.collective_rpc("shutdown")
    assert error.value.param == "method"
    for arguments, param in (({"args": (1,)}, "args"), ({"kwargs": {"a": 1}}, "kwargs")):
        for method in ("weights_version", "reload_weights"):
            with pytest.raises(InvalidRequestError, match="takes no arguments") as error:
                llm.collective_rpc(method, **arguments)
            assert error.value.param == param
    for method in ("weights_version", "reload_weights"):
        with pytest.raises(UnsupportedError, match="timeout"):
            llm.collective_rpc(method, timeout=1.0)


def test_a_merged_adapter(llm, trainer):
    """Low-rank changes merged into the layers, pushed as PEFT's merged model has them."""
    torch.manual_seed(0)
    pushed = []
    for name, parameter in trainer.named_parameters():
        if name.endswith(("q_proj.weight", "v_proj.weight")):
            rows, columns = parameter.shape
            with torch.no_grad():
                parameter += 0.3 * torch.randn(rows, 4) @ torch.randn(4, columns) / 8
            name = name.replace(".weight", ".base_layer.weight")
        pushed.append((f"base_model.model.{name}", parameter.data))
    for item in pushed:
        model_of(llm).load_weights([item])
    assert_same_logprobs(llm, trainer)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # peft's own
def test_an_adapter_of_peft(llm, trainer):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(trainer, config)
    adapted.merge_adapter()
    for name, parameter in adapted.named_parameters():
        if adapted.prefix not in name:
            model_of(llm).load_weights([(name, parameter.data)])
    assert_same_logprobs(llm, adapted)
    adapted.unmerge_adapter()
