"""Generation and training in turn, in the memory of one of them: REINFORCE on the demo model.

The reward of an answer is the share of its letters that are 'e'. While the trainer works, the engine sleeps at level 2:
nothing of it stays in memory. Then the new weights are pushed, and cached prefixes, which belong to the old ones, are
forgotten. Needs `pip install lullm[transformers]`. (grpo_trl.py does it with TRL.)
"""

import torch
from transformers import AutoModelForCausalLM

from lullm import LLM, SamplingParams
from lullm.weights.folder import resolve_model

PROMPTS = ["Once upon a time", "The dog", "One day", "Tell me"]
ROUNDS = 4

llm = LLM("demo", dtype="float32", enable_sleep_mode=True)
policy = AutoModelForCausalLM.from_pretrained(resolve_model("demo"), dtype=torch.float32)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)


def reward(text: str) -> float:
    return text.count("e") / max(len(text), 1)


history = []
for step in range(ROUNDS):
    params = SamplingParams(n=8, temperature=1, max_tokens=24, seed=step, ignore_eos=True)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    released = llm.sleep(level=2).freed_bytes

    rewards = torch.tensor([[reward(completion.text) for completion in output.outputs] for output in outputs])
    advantages = rewards - rewards.mean(dim=1, keepdim=True)
    loss = torch.zeros(())
    for output, row in zip(outputs, advantages, strict=True):
        prompt = output.prompt_token_ids
        tokens = torch.tensor([[*prompt, *completion.token_ids] for completion in output.outputs])  # [8, T]
        logprobs = policy(tokens[:, :-1]).logits.log_softmax(-1)
        chosen = logprobs.gather(-1, tokens[:, 1:, None])[:, len(prompt) - 1 :, 0]  # [8, 24], of what was drawn
        loss = loss - (row * chosen.mean(dim=1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    llm.wake_up(tags=["weights"])
    llm.update_weights((name, tensor.detach()) for name, tensor in policy.named_parameters())
    llm.wake_up(tags=["kv_cache"])
    history.append(rewards.mean().item())
    print(f"round {step}: reward {history[-1]:.4f}, {released / 2**20:.0f} MiB released for the trainer", flush=True)

# The engine now computes with the trainer's weights: its log-probabilities are the trainer's.
[output] = llm.generate("The dog", SamplingParams(temperature=0, max_tokens=1, logprobs=0), use_tqdm=False)
[(token_id, found)] = output.outputs[0].logprobs[0].items()
expected = policy(torch.tensor([output.prompt_token_ids])).logits[0, -1].log_softmax(-1)[token_id].item()
print(f"engine {found.logprob:.5f}, trainer {expected:.5f}")
assert abs(found.logprob - expected) < 1e-4
llm.shutdown()
