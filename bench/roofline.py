"""The roofline picture: what each kernel reaches, beside the two ceilings of the machine that measured it.

    python bench/kernels.py --only linear --only attention --json kernels.json
    python bench/roofline.py kernels.json docs/roofline.png

Across: operations per byte that must be read and written (weights, keys, values, queries, results, once each). Up: the
speed. Both are logarithmic. The slope is a sum over a gigabyte of memory, the flat part products alone.
Printed is each kernel's share of the lower of the two at its place (Williams, Waterman and Patterson, 2009).
"""

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels import HEAD_SIZE, LAYER, NUM_KV_HEADS, NUM_Q_HEADS, STEPS

from lullm.draw.canvas import BLACK, TEXT_HEIGHT, Canvas, Color, text_width

COLORS: dict[str, Color] = {"linear": (31, 119, 180), "decode": (44, 160, 44), "prefill": (255, 127, 14)}
GRID: Color = (225, 225, 225)
WIDTH, HEIGHT, MARGIN, LIST_WIDTH = 1000, 560, 50, 380
POINT = 7
"""Pixels of a kernel's mark."""


@dataclass(frozen=True)
class Kernel:
    name: str
    kind: str
    operations: float
    num_bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        return self.operations / self.num_bytes

    @property
    def speed(self) -> float:
        return self.operations / self.seconds

    def share(self, reading: float, products: float) -> float:
        """Of the lower ceiling: bytes per second times its intensity, or operations per second."""
        return self.speed / min(products, reading * self.intensity)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="of bench/kernels.py --json")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    args = parser.parse_args()
    report = json.loads(args.report.read_text())
    kernels = kernels_of(report)
    if not kernels:
        raise SystemExit(f"{args.report} has no kernels: measure with --only linear --only attention")
    reading = report["ceilings"]["read GB/s"] * 1e9
    products = report["ceilings"]["products TFLOP/s"] * 1e12
    for kernel in kernels:
        share = kernel.share(reading, products)
        print(f"{kernel.name:24} {kernel.intensity:8.1f} per byte {kernel.speed / 1e12:8.3f} TFLOP/s {share:5.0%}")
    draw(kernels, reading, products, report["isa"]).write(args.picture)


def kernels_of(report: dict[str, Any]) -> list[Kernel]:
    """Those of a report, with what they must compute, read and write at least."""
    kernels = []
    num_layers = report["layers"]  # of linears, which are measured together; attention is measured per layer
    for rows, seconds in ((int(name), found) for name, found in report.get("linear", {}).items() if name.isdigit()):
        weights = sum(out * depth for out, depth in LAYER)
        activations = rows * sum(out + depth for out, depth in LAYER)
        kernels.append(
            Kernel(
                f"linear {rows} rows", "linear", num_layers * 2 * rows * weights,
                num_layers * 2 * (weights + activations), seconds["native"],
            )
        )  # fmt: skip
    for name, seconds in report.get("attention", {}).items():
        spans = STEPS[name]
        pairs = sum(queries * (context - (queries - 1) / 2) for queries, context in spans)
        num_keys, num_queries = sum(context for _, context in spans), sum(queries for queries, _ in spans)
        num_bytes = 2 * HEAD_SIZE * (2 * num_keys * NUM_KV_HEADS + 2 * num_queries * NUM_Q_HEADS)
        kind = "decode" if all(queries == 1 for queries, _ in spans) else "prefill"
        kernels.append(Kernel(name, kind, pairs * NUM_Q_HEADS * HEAD_SIZE * 4, num_bytes, seconds["native"]))
    return kernels


class Axes:
    """Where an intensity and a speed lie in a picture."""

    def __init__(self, kernels: list[Kernel], reading: float, products: float):
        intensities = [kernel.intensity for kernel in kernels] + [products / reading]
        speeds = [kernel.speed for kernel in kernels] + [products]
        self.left, self.right = math.floor(math.log2(min(intensities))), math.ceil(math.log2(max(intensities))) + 1
        self.low, self.high = math.floor(math.log2(min(speeds))) - 1, math.ceil(math.log2(max(speeds)))
        self.across = (WIDTH - LIST_WIDTH - 2 * MARGIN) / (self.right - self.left)
        self.up = (HEIGHT - 2 * MARGIN) / (self.high - self.low)

    def x(self, intensity: float) -> int:
        return MARGIN + round((math.log2(intensity) - self.left) * self.across)

    def y(self, speed: float) -> int:
        return HEIGHT - MARGIN - round((math.log2(speed) - self.low) * self.up)


def draw(kernels: list[Kernel], reading: float, products: float, isa: str) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT)
    axes = Axes(kernels, reading, products)
    ceilings = f"{reading / 1e9:.1f} GB/s, {products / 1e12:.2f} TFLOP/s"
    canvas.text(MARGIN, 12, f"{isa}: TFLOP/s over operations per byte, ceilings {ceilings}")
    draw_grid(canvas, axes)
    for x in range(MARGIN, WIDTH - LIST_WIDTH - MARGIN):
        intensity = 2 ** (axes.left + (x - MARGIN) / axes.across)
        canvas.fill(x, axes.y(min(products, reading * intensity)), 1, 2, BLACK)
    x = WIDTH - LIST_WIDTH - MARGIN + 24
    for number, kernel in enumerate(kernels, start=1):
        color = COLORS[kernel.kind]
        left, top = axes.x(kernel.intensity), axes.y(kernel.speed)
        canvas.fill(left - POINT // 2, top - POINT // 2, POINT, POINT, color)
        canvas.text(left + POINT, top - (TEXT_HEIGHT + 4) * (number % 2), str(number), color)
        share = kernel.share(reading, products)
        canvas.text(x, MARGIN + number * (TEXT_HEIGHT + 6), f"{number:2} {share:4.0%} {kernel.name}", color)
    canvas.text(x, MARGIN, "share of the lower ceiling")
    return canvas


def draw_grid(canvas: Canvas, axes: Axes) -> None:
    for power in range(axes.left, axes.right + 1):
        x = axes.x(2.0**power)
        canvas.fill(x, MARGIN, 1, HEIGHT - 2 * MARGIN, GRID)
        label = f"{2.0**power:g}"
        canvas.text(x - text_width(label) // 2, HEIGHT - MARGIN + 8, label)
    for power in range(axes.low, axes.high + 1):
        y = axes.y(2.0**power)
        canvas.fill(MARGIN, y, WIDTH - LIST_WIDTH - 2 * MARGIN, 1, GRID)
        canvas.text(4, y - TEXT_HEIGHT // 2, f"{2.0**power / 1e12:.2g}")


if __name__ == "__main__":
    main()
