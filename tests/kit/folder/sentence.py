"""What sentence-transformers and transformers put into a folder that pools."""

import json

import torch
from safetensors.torch import load_file, save_file


def write_modules(folder, kind, normalize, dense=(), size=48):
    """modules.json with a pooling of this kind, such as 'lasttoken', over rows of `size` elements.

    `dense`: (elements, has a bias, torch's activation) of each layer behind. Returns these layers.
    """
    names = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalize]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = dict.fromkeys(("cls_token", "mean_tokens", "max_tokens", "lasttoken"), False) | {kind: True}
    config = {"word_embedding_dimension": size, **{f"pooling_mode_{name}": value for name, value in modes.items()}}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    layers = torch.nn.Sequential()
    generator = torch.Generator().manual_seed(1)
    for number, (out_size, bias, activation) in enumerate(dense, 2):
        layer, own = torch.nn.Linear(size, out_size, bias), folder / f"{number}_Dense"
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
        own.mkdir(exist_ok=True)
        save_file({f"linear.{name}": tensor for name, tensor in layer.state_dict().items()}, own / "model.safetensors")
        stated = f"torch.nn.modules.{activation.__module__.rpartition('.')[2]}.{activation.__name__}"
        config = {"in_features": size, "out_features": out_size, "bias": bias, "activation_function": stated}
        (own / "config.json").write_text(json.dumps(config))
        layers.extend([layer, activation()])
        size = out_size
    return layers


def write_score(folder):
    """A causal checkpoint becomes a `...ForSequenceClassification` with one label."""
    path, file = folder / "config.json", folder / "model.safetensors"
    config = json.loads(path.read_text())
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    path.write_text(json.dumps(config))
    tensors = {name: tensor for name, tensor in load_file(file).items() if name != "lm_head.weight"}
    generator = torch.Generator().manual_seed(0)
    score = torch.randn(1, config["hidden_size"], generator=generator) / 4
    save_file(tensors | {"score.weight": score}, file)
