"""Random prompts, every second one with a common start."""

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


def prompts_beyond_a_window(short: list[int], num_long: int, seed: int = 0) -> list[list[int]]:
    """Short ones of these lengths, which grow, then long ones of 200 tokens, each 3 shorter than the one before; every
    second long one begins with the same 120."""
    rng = random.Random(seed)

    def draw(count: int) -> list[int]:
        return [rng.randrange(3, 300) for _ in range(count)]

    shared = draw(120)
    return [draw(count) for count in short] + [
        (shared if i % 2 else draw(120)) + draw(80 - 3 * i) for i in range(num_long)
    ]
