"""What the machine does at most, and cuBLAS at the few rows of decoding: the bounds of all other figures.

Own products of one and two rows stand beside it (`ops/triton/product/few_rows.py`), by the shipped tile ("own") and by
others.
"""

from dataclasses import astuple

from gpu_kernels import GPU_SHAPES, median_s, replayed_s

from gpu_parts.line import Lines

ROWS = (1, 2, 4, 8, 32)
MAX_WEIGHTS = 8
MAX_TILES: int | None = None


def matrices(shape: str) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of the five products of a layer and the head."""
    s = GPU_SHAPES[shape]
    heads, inner, hidden = s["head_dim"], s["intermediate_size"], s["hidden_size"]
    return {
        "qkv": ((s["num_attention_heads"] + 2 * s["num_key_value_heads"]) * heads, hidden),
        "o": (hidden, s["num_attention_heads"] * heads),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (s["vocab_size"], hidden),
    }


def run(lines: Lines) -> None:
    import torch
    from gpu import ceilings

    from gpu_parts.candidates import FEW_ROWS_CANDIDATES
    from lullm.ops.triton.product import few_rows
    from lullm.ops.triton.tile import few_rows_tile

    names = {f"{matrix} of {shape}": (shape, matrix) for shape in ("8b", "0.6b") for matrix in matrices(shape)}
    lines.plan(["ceilings", *names, "launch"])
    with lines.case("ceilings") as figures:
        figures |= ceilings()
    for name, (shape, matrix) in names.items():
        with lines.case(name) as figures, torch.inference_mode():
            dims = matrices(shape)[matrix]
            # Several of them in turn: one of 0.6B would stay in the second-level cache.
            num = max(1, min(MAX_WEIGHTS, (256 << 20) // (2 * dims[0] * dims[1])))
            weights = [torch.randn(dims, device="cuda", dtype=torch.bfloat16) for _ in range(num)]
            for rows in ROWS:
                x = torch.randn(rows, dims[1], device="cuda", dtype=torch.bfloat16)
                seconds = replayed_s(lambda x=x, weights=weights: [x @ weight.T for weight in weights]) / num
                figures[f"{rows}_rows_gb_per_s"] = weights[0].nbytes / seconds / 1e9
                shipped = [few_rows_tile(*dims, rows)] if rows <= few_rows.MAX_ROWS else []
                others = FEW_ROWS_CANDIDATES[:MAX_TILES] if rows == 1 else []
                for tile in dict.fromkeys([*shipped, *others]):
                    own = replayed_s(lambda x=x, weights=weights, tile=tile: [
                        few_rows.product(x, w, None, tile=tile) for w in weights
                    ]) / num  # fmt: skip
                    name = "own" if tile in shipped else "x".join(map(str, astuple(tile)))
                    figures[f"{rows}_rows_{name}_gb_per_s"] = weights[0].nbytes / own / 1e9
    with lines.case("launch") as figures:
        one = torch.zeros(1, device="cuda")
        figures["empty_node_us"] = 1e6 * replayed_s(lambda: one.add_(1.0))
        figures["small_copy_us"] = 1e6 * median_s(lambda: one.add_(1.0))
