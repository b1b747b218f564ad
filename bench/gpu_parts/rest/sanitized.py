"""Every kernel once at small shapes, without pytest: under compute-sanitizer all else would take longer than they do.

Results are not compared with anything: `correctness` does that. The tool's exit status says what it has found.
"""

import torch

from gpu_parts.case.attention import AttentionCase, new_step
from gpu_parts.case.draw import DrawCase, check_draw
from gpu_parts.case.rows import row_cases
from gpu_parts.line import Lines

CASES = [AttentionCase(kind, cache=cache, shrink=16) for kind in ("mixed", "short chunk") for cache in ("model", "fp8")]
"""Contexts of 512 tokens at most: several parts, several turns."""
DRAW = DrawCase("flat", 20_000, 1)


def run(lines: Lines) -> None:
    from lullm.ops.triton.attention import attention
    from lullm.ops.triton.decode_attention import MAX_NUM_KV_HEADS
    from lullm.ops.triton.device import launch_device
    from lullm.ops.triton.draw.tokens import draw_tokens

    device = launch_device()
    rows = {name: check for name, check in row_cases(device).items() if "8192" not in name and "2^31" not in name}
    lines.plan([*rows, *(case.name for case in CASES), DRAW.name])
    for name, check in rows.items():
        with lines.case(name):
            check()
    for case in CASES:
        with lines.case(case.name):
            step = new_step(case, device)
            attention(step.q, step.cache, step.prepared(MAX_NUM_KV_HEADS), step.scores)
            torch.cuda.synchronize()
    with lines.case(DRAW.name):
        check_draw(DRAW, device, draw_tokens)
