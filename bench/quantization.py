"""What quantization costs in quality: logits of a quantized model beside those of the model in full.

    PYTHONPATH=. python bench/quantization.py         the demo model, over its own kind of text (of `training/`)
    python bench/quantization.py --shape qwen3-0.6b   dummy weights of a real shape, over random tokens

Per format: the relative error of the logits, |a - b| / |b|; the mean Kullback-Leibler divergence of the next token's
distribution from the full one, in nats; and how often the likeliest token is the same. `int4 all` also has embedding
and head in 4 bits, which no option offers: it is why they take 8.
"""

import argparse
import contextlib
import random
import tempfile

import torch
from engine_part import model_of, quantized_by
from shape import SHAPES, model_options

from lullm import LLM, SamplingParams
from lullm.nn.linear import Matrix

FORMATS = {"bfloat16": ("bfloat16", None), "int8": ("bfloat16", "int8"), "int4": ("bfloat16", "int4")}
FORMATS |= {"int4 all": ("bfloat16", "int4 all")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--num-prompts", type=int, default=200, help="of the demo model; a shape takes 2 of 64 tokens")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = model_options(folder, args.shape, max_model_len=256)
        prompts = random_prompts(SHAPES[args.shape]["vocab_size"]) if args.shape else demo_prompts(args.num_prompts)
        expected = logits_of(prompts, **options, dtype="float32")
        print(f"{len(expected)} positions; beside float32:")
        print(f"{'':10}{'weights':>10}{'error':>10}{'KL, nats':>12}{'same best':>12}")
        for name, (dtype, quantization) in FORMATS.items():
            found = logits_of(prompts, **options, dtype=dtype, quantization=quantization)
            error = (found - expected).norm() / expected.norm()
            full, ours = expected.log_softmax(-1), found.log_softmax(-1)
            divergence = (full.exp() * (full - ours)).sum(-1).mean()
            same = (found.argmax(-1) == expected.argmax(-1)).float().mean()
            print(f"{name:10}{weight_bytes[0] / 2**20:7.1f} MiB{error:10.2%}{divergence:12.5f}{same:12.1%}", flush=True)


def demo_prompts(count: int) -> list[str]:
    from training.corpus.corpus import TASKS, held_out_items, user_turn

    items = [item for task in TASKS for item in held_out_items(task, count // len(TASKS) + 1, 1)]
    return [user_turn(item.question) + item.answer for item in items[:count]]


def random_prompts(vocab_size: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(1000, min(vocab_size, 100_000)) for _ in range(64)] for _ in range(2)]


weight_bytes = [0]


def logits_of(prompts, **options) -> torch.Tensor:
    """The logits of every position of every prompt, in order."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    seen: list[torch.Tensor] = []
    with contextlib.ExitStack() as stack:
        if options.get("quantization") == "int4 all":
            options["quantization"] = "int4"
            stack.enter_context(quantized_by(quantize_everything))
        llm = stack.enter_context(LLM(**options, enable_prefix_caching=False, max_num_seqs=1))
        model = model_of(llm)
        weight_bytes[0] = sum(parameter.nbytes for parameter in model.parameters())
        compute = model.compute_logits
        model.compute_logits = lambda hidden, ops: seen.append(compute(hidden, ops).clone()) or seen[-1]
        for prompt in prompts:
            llm.generate([prompt], params, use_tqdm=False)
    return torch.cat(seen).float()


def quantize_everything(model, quantization: str) -> None:
    for module in model.modules():
        if isinstance(module, Matrix) and module.weight is not None:
            module.quantize(4)


if __name__ == "__main__":
    main()
