"""`lullm quantize`: writes a quantized copy of a model folder, which a start reads unchanged."""

import argparse
import json
import shutil
from itertools import chain
from pathlib import Path

from lullm.config.mistral.layout import read_config
from lullm.config.model import ModelConfig
from lullm.config.pooling.use import Use, with_use
from lullm.errors import ModelLoadError
from lullm.units import MIB, format_bytes

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")
_LARGEST_COPY = 256 * MIB
_COPIED = ("*", "*/config.json", "additional_chat_templates/*")
"""Files to copy. Sub-folders hold templates, and modules of sentence-transformers' modules.json such as 1_Pooling."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm quantize`."""
    parser.description = (
        "Write a copy of a model whose matrices are quantized, with its tokenizer. Starting the copy gives "
        "the same bytes in memory as starting the original with --quantization, sooner and from a smaller file."
    )
    parser.add_argument("model", metavar="IN", help="a model folder or a hub id")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to write; it must not exist")
    parser.add_argument("--quantization", choices=("int8", "int4"), required=True, help="bits of the matrices")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the copy. Raises LullmError."""
    out: Path = args.out
    if out.exists():
        raise ModelLoadError(f"{out} exists; name a folder that does not, or remove it first")
    from lullm.weights.folder import resolve_model
    from lullm.weights.reading.head import with_own_head

    source = resolve_model(args.model)
    if source.is_file():
        raise ModelLoadError(f"{source} is a GGUF file; start it as it is, or take the folder that it was made from")
    config = with_own_head(ModelConfig.from_folder(source), source)
    config = with_use(config, source, Use())
    if config.encoding is not None and (config.quantization or config.encoding.method == "lullm"):
        raise ModelLoadError(f"{source} is such a copy already; start it as it is, or take the original")
    partial = out.with_name(out.name + ".partial")
    try:
        partial.mkdir(parents=True)
    except FileExistsError:
        raise ModelLoadError(f"{partial} is left from a run that was cut short, or one writes it; remove it") from None
    try:
        _write(config, source, partial, args.quantization)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial)
        raise
    old, new = _weights_bytes(source), _weights_bytes(out)
    print(f"{out}: weights of {format_bytes(new)}, of {format_bytes(old)} before; start it with --model {out}")
    return 0


def _write(config: ModelConfig, source: Path, out: Path, quantization: str) -> None:
    import torch

    from lullm.models.registry import build_model
    from lullm.ops.selection import select_ops
    from lullm.weights.encoding.export import export_quantized
    from lullm.weights.headers import check_headers
    from lullm.weights.reading.files import SINGLE_FILE
    from lullm.weights.storage import choose_storage

    check_headers(config, source)
    model = build_model(config, torch.bfloat16, config.max_position_embeddings)
    choose_storage(model, config.encoding, quantization, None)
    stated = export_quantized(model, source, out, "int8" if quantization == "int8" else "int4", select_ops("cpu"))
    for path in chain.from_iterable(source.glob(pattern) for pattern in _COPIED):
        if path.is_file() and not path.name.endswith(_WEIGHTS) and path.stat().st_size <= _LARGEST_COPY:
            copy = out / path.relative_to(source)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
    for path in source.glob(f"*_Dense/{SINGLE_FILE}"):  # as it is, since `--quantization` leaves these layers, too
        shutil.copyfile(path, out / path.relative_to(source))
    data = read_config(source) | {"quantization_config": stated}
    if not config.tie_word_embeddings:  # a quantized head has no bytes to compare
        data["tie_word_embeddings"] = False
    (out / "config.json").write_text(json.dumps(data, indent=1))


def _weights_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
