"""Texts per second of encoders, beside transformers in sorted batches, in turn: medians, and their ratio.

    python bench/encoders.py                                   three shapes, float32 and bfloat16
    python bench/encoders.py --shape bge-base --dtype bfloat16 --texts 128 --threads 1

Weights are dummy ones, and texts are random token ids of mixed lengths, most of them short. transformers gets them as
sentence-transformers gives them: sorted by length, in batches of 32, padded to the longest one, a mean over the real
tokens. lullm gets them in a random order, as requests of the whole engine (`LLM.embed`).
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # two pools that spin against each other measure nothing

import torch

from lullm import LLM

SIZES = {
    "minilm-l6": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "bge-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
SIZES["mpnet-base"] = SIZES["bge-base"] | {"architectures": ["MPNetModel"], "max_position_embeddings": 514}
"""all-MiniLM-L6's and bge-base's, which are BERT's, and all-mpnet-base's."""
OF_ALL = {
    "architectures": ["BertModel"], "vocab_size": 30522, "max_position_embeddings": 512, "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}  # fmt: skip
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SIZES, action="append", help="may be given several times (default: all)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), action="append", help="the same (default: both)")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--longest", type=int, default=256, help="tokens; a median text has an eighth of them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rng = random.Random(0)
    lens = [min(args.longest, max(3, round(rng.lognormvariate(0, 0.8) * args.longest / 8))) for _ in range(args.texts)]
    texts = [[rng.randrange(1000, OF_ALL["vocab_size"]) for _ in range(length)] for length in lens]
    print(f"{len(texts)} texts, {sum(lens)} tokens, {min(lens)} to {max(lens)} each")
    report = {}
    for shape in args.shape or SIZES:
        for dtype in args.dtype or ("float32", "bfloat16"):
            report[f"{shape} {dtype}"] = measure(shape, dtype, texts, args)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


def measure(shape: str, dtype: str, texts: list[list[int]], args: argparse.Namespace) -> dict[str, float]:
    config = OF_ALL | SIZES[shape]
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), config)
        options = {"tokenizer": "demo", "load_format": "dummy", "dtype": dtype, "threads": args.threads}
        with LLM(folder, **options) as llm:
            versions = {
                "lullm": lambda: llm.embed(texts, use_tqdm=False),
                "transformers": peer(config, dtype, texts, args.threads),
            }
            seconds = in_turn(versions, args.repeat)
    found = {version: len(texts) / taken for version, taken in seconds.items()}
    ratio = found["lullm"] / found["transformers"]
    line = ", ".join(f"{version} {value:.1f} texts/s" for version, value in found.items())
    print(f"{shape}, {dtype}: {line}, x{ratio:.2f}", flush=True)
    return found | {"ratio": ratio}


def write_folder(folder: Path, config: dict) -> None:
    """As sentence-transformers has it: the mean of all tokens, normalized."""
    (folder / "config.json").write_text(json.dumps(config))
    names = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in names.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))


def in_turn(versions: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Median seconds of each; the first round is left out."""
    seconds: dict[str, list[float]] = {version: [] for version in versions}
    for _ in range(repeat + 1):
        for version, run in versions.items():
            started = time.perf_counter()
            run()
            seconds[version].append(time.perf_counter() - started)
    return {version: statistics.median(values[1:]) for version, values in seconds.items()}


def peer(config: dict, dtype: str, texts: list[list[int]], num_threads: int) -> Callable[[], object]:
    """A call of transformers' model with all texts."""
    import transformers

    values = {key: value for key, value in config.items() if key != "architectures"}
    cls = getattr(transformers, config["architectures"][0])
    model = cls(cls.config_class(**values), add_pooling_layer=False).to(getattr(torch, dtype)).eval()
    ordered = sorted(texts, key=len, reverse=True)

    @torch.inference_mode()
    def run() -> list[torch.Tensor]:
        torch.set_num_threads(num_threads)  # an engine of this process has its own number
        found = []
        for first in range(0, len(ordered), BATCH):
            part = ordered[first : first + BATCH]
            longest = len(part[0])
            ids = torch.tensor([text + [1] * (longest - len(text)) for text in part])
            mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in part])
            rows = model(ids, attention_mask=mask).last_hidden_state * mask[..., None]
            means = rows.sum(1) / mask.sum(1, keepdim=True)
            found.append(torch.nn.functional.normalize(means, dim=1))
        return found

    return run


if __name__ == "__main__":
    main()
