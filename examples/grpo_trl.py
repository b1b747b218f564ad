"""GRPO by TRL: its trainer updates the policy, lullm writes the answers, and the two take turns in one memory.

TRL asks for answers through `rollout_func`. Between two calls the engine sleeps at level 2, and nothing of it stays in
memory; each call wakes it with the trainer's weights. Needs `pip install lullm[transformers] trl`. The reward of an
answer is the share of its letters that are 'e', as in reinforcement.py, which does the same without a framework.
"""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` may change, TRL says at each start
from trl import GRPOConfig, GRPOTrainer

from lullm import LLM, SamplingParams
from lullm.weights.folder import resolve_model

PROMPTS = ["Once upon a time", "The dog", "One day", "Tell me"]
NUM_ANSWERS = 8
MAX_TOKENS = 24
ROUNDS = 4

folder = resolve_model("demo")
llm = LLM(folder, dtype="float32", enable_sleep_mode=True)
llm.sleep(level=2)


def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list]:
    """One answer for each of `prompts` by the trainer's weights; TRL repeats a prompt for every answer it wants."""
    llm.wake_up(tags=["weights"])
    llm.update_weights((name, tensor.detach()) for name, tensor in trainer.model.named_parameters())
    llm.wake_up(tags=["kv_cache"])
    params = SamplingParams(temperature=1, max_tokens=MAX_TOKENS, logprobs=0)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    released = llm.sleep(level=2).freed_bytes

    answers = [output.outputs[0] for output in outputs]
    drawn = [list(answer.token_ids) for answer in answers]
    logprobs = [
        [found[token_id].logprob for token_id, found in zip(answer.token_ids, answer.logprobs, strict=True)]
        for answer in answers
    ]
    away = difference(trainer.model, outputs[0].prompt_token_ids, drawn[0], logprobs[0])
    print(f"{released / 2**20:.0f} MiB released; engine and trainer are {away:.0e} apart", flush=True)
    assert away < 1e-4
    return {
        "prompt_ids": [list(output.prompt_token_ids) for output in outputs],
        "completion_ids": drawn,
        "logprobs": logprobs,
    }


@torch.no_grad()
def difference(policy: torch.nn.Module, prompt: list[int], drawn: list[int], logprobs: list[float]) -> float:
    """How far the engine's log-probabilities of an answer are from the trainer's, at most."""
    rows = policy(torch.tensor([[*prompt, *drawn]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)  # [T, V]
    own = rows.gather(-1, torch.tensor(drawn)[:, None])[:, 0]
    return (own - torch.tensor(logprobs)).abs().max().item()


def reward(completions: list[str], **_) -> list[float]:
    return [text.count("e") / max(len(text), 1) for text in completions]


with tempfile.TemporaryDirectory() as output_dir:
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=reward,
        rollout_func=rollout,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS * ROUNDS}),
        args=GRPOConfig(
            output_dir=output_dir,
            max_steps=ROUNDS,
            per_device_train_batch_size=len(PROMPTS) * NUM_ANSWERS,
            num_generations=NUM_ANSWERS,
            max_completion_length=MAX_TOKENS,
            learning_rate=1e-4,
            use_cpu=True,  # this example's; leave it out on a GPU
            bf16=False,
            seed=0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.train()

for step, row in enumerate(row for row in trainer.state.log_history if "reward" in row):
    print(f"round {step}: reward {row['reward']:.4f}")
llm.shutdown()
