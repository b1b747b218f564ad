"""Random prompts, every second one with a common prefix."""

import random


def random_prompts(num: int, longest: int, seed: int = 0) -> list[list[int]]:
    """`num` lists of token ids, 1 to `longest` long."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, 300) for _ in range(longest // 2)]
    prompts = []
    for i in range(num):
        own = [rng.randrange(3, 300) for _ in range(rng.randrange(1, longest // 2))]
        prompts.append(shared + own if i % 2 else own)
    return prompts
