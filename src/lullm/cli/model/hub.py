"""`lullm pull`, `list`, `show` and `rm`: the models in the hub's cache."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from lullm.config.gguf.file import SUFFIX, read_gguf, shard_paths
from lullm.config.json_file import given_path
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.units import format_bytes

_LARGEST_DAYS = 99


def add_pull_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm pull`."""
    parser.description = (
        "Fetch a model from the hub into its cache, as far as the cache lacks it. Prints its folder. "
        "HF_TOKEN names the account for private and gated models."
    )
    parser.add_argument(
        "name", metavar="NAME", help="a hub id, such as Qwen/Qwen3-0.6B, or ID:QUANTIZATION of GGUF files"
    )
    parser.add_argument("--revision", help="a branch, a tag or a commit (default: the newest of the main branch)")
    parser.set_defaults(run=_pull)


def add_list_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm list`."""
    parser.description = "List the models in the hub's cache."
    _add_json_flag(parser)
    parser.set_defaults(run=_list)


def add_show_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm show`."""
    parser.description = (
        "Say what a model of the hub's cache, or in a folder, is: its architecture, sizes and files, and "
        "whether lullm can run it. Loads no torch, and fetches nothing."
    )
    parser.add_argument("name", metavar="NAME", help="a hub id in the cache, a folder, a GGUF file, or demo")
    _add_json_flag(parser)
    parser.set_defaults(run=_show)


def add_remove_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm rm`."""
    parser.description = "Remove a model, all its revisions, from the cache."
    parser.add_argument("name", metavar="NAME", help="its hub id")
    parser.set_defaults(run=_remove)


def _add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def _pull(args: argparse.Namespace) -> int:
    from lullm.weights.folder import hub_id
    from lullm.weights.gguf.hub import hub_gguf
    from lullm.weights.hub.download import download

    repository, _, quantization = args.name.partition(":")
    name = hub_id(repository)
    if quantization:
        print(hub_gguf(name, quantization, args.revision, asks_hub=True))
    else:
        print(download(name, args.revision))
    return 0


def _list(args: argparse.Namespace) -> int:
    from lullm.weights.hub.cache import cached_models

    models = cached_models()
    if args.json:
        print(json.dumps([_described(model) for model in models], indent=1))
        return 0
    rows = [("NAME", "REVISION", "SIZE", "USED", "")]
    for model in models:
        note = "" if model.is_complete else "incomplete: lullm pull fetches the rest"
        ref = model.refs[0] if model.refs else model.revision[:12]
        rows.append((model.name, ref, format_bytes(model.num_bytes), _ago(model.last_used), note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _show(args: argparse.Namespace) -> int:
    facts = _facts(_local_model(args.name))
    if args.json:
        print(json.dumps(facts, indent=1))
        return 0
    width = max(map(len, facts))
    for name, value in facts.items():
        shown = format_bytes(value) if name.endswith("bytes") else value
        print(f"{name.replace('_', ' ').ljust(width)}  {shown}")
    return 0


def _remove(args: argparse.Namespace) -> int:
    from lullm.weights.folder import hub_id
    from lullm.weights.hub.cache import remove_model

    freed = remove_model(hub_id(args.name))
    print(f"removed {args.name}: {format_bytes(freed)} are free again")
    return 0


def _local_model(name: str) -> Path:
    """The folder or GGUF file of a local model. Raises ModelLoadError."""
    from lullm.weights.folder import hub_id, resolve_model
    from lullm.weights.gguf.hub import choose
    from lullm.weights.hub.cache import cached_models

    if name == "demo" or given_path(name).exists():
        return resolve_model(name)
    repository, _, quantization = name.partition(":")
    wanted = hub_id(repository)
    models = [model for model in cached_models() if model.name == wanted]
    if not models:
        raise ModelLoadError(f"the hub's cache holds no model {name!r}; `lullm pull {name}` fetches it")
    folder = max(models, key=lambda model: ("main" in model.refs, model.revision)).path
    if not quantization:
        return resolve_model(str(folder))
    names = [str(path.relative_to(folder)) for path in folder.rglob(f"*{SUFFIX}")]
    return folder / choose(names, repository, quantization)


def _facts(model: Path) -> dict[str, Any]:
    """The facts of a folder or a GGUF file. 'runs': whether lullm can run it, or why not."""
    place = "file" if model.is_file() else "folder"
    facts: dict[str, Any] = {place: str(model), "weights_bytes": _weights_bytes(model)}
    try:
        config = ModelConfig.from_folder(model)
        if config.vision is not None and (tower := config.vision.weights_file) is not None:
            facts |= {"weights_bytes": facts["weights_bytes"] + tower.stat().st_size, "mmproj": str(tower)}
        quantized = _quantized(config, model)
    except ModelLoadError as error:
        return facts | {"runs": f"no: {error}"}
    return facts | {
        "architecture": config.architecture,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "heads": _heads(config),
        "vocabulary": config.vocab_size,
        "positions": config.max_position_embeddings,
        "dtype": config.dtype,
        "quantized": quantized,
        **_sight(config),
        "runs": "yes",
    }


def _sight(config: ModelConfig) -> dict[str, str]:
    """Whether the model sees pictures; empty: it is one of text."""
    if config.vision is not None:
        tower = config.vision.tower
        return {"pictures": f"yes, by a tower of {tower.num_layers} layers and {tower.hidden_size} elements"}
    return {"pictures": f"no: {config.no_vision}"} if config.no_vision else {}


def _heads(config: ModelConfig) -> str:
    if not config.has_attention:
        return "none: its layers keep states"
    if config.family.encoder_only is not None:
        return f"{config.num_attention_heads} of {config.head_dim}, which see the whole text"
    return f"{config.num_attention_heads} of {config.head_dim}, {config.num_key_value_heads} for keys and values"


def _quantized(config: ModelConfig, model: Path) -> str:
    """The format of the stored matrices; 'no': floating point."""
    if not model.is_file():
        return config.encoding.method if config.encoding is not None else config.own_encoding or "no"
    formats = {place.format for place in read_gguf(model).tensors.values()}
    return ", ".join(sorted(each.name for each in formats if each.is_quantized)) or "no"


def _weights_bytes(model: Path) -> int:
    files = shard_paths(model) if model.is_file() else model.glob("*.safetensors")
    return sum(path.stat().st_size for path in files if path.is_file())


def _described(model: Any) -> dict[str, Any]:
    names = ("name", "revision", "num_bytes", "last_used", "is_complete")
    return {name: getattr(model, name) for name in names} | {"refs": list(model.refs), "path": str(model.path)}


def _ago(then: float) -> str:
    days = int((time.time() - then) // 86400)
    return (
        "today"
        if days < 1
        else f"{days} days ago"
        if days <= _LARGEST_DAYS
        else time.strftime("%Y-%m", time.gmtime(then))
    )
