"""Blueprint: a model of `transformers` on the meta device, and each layer's call of attention.

The model runs once on the meta device, with an attention that records its calls. So code that bypasses this interface
is found before any weight is read, and refused by name.
"""

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lullm.config.field import LARGEST_ID, MOST_HEAD_DIM, MOST_HEADS, MOST_INTERMEDIATE, MOST_LAYERS, shown
from lullm.config.rope import MOST_POSITIONS
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import FullAttention, LayerKind, SlidingWindow
from lullm.weights.rule import Rename

PROBE = "lullm_probe"
"""The name of the attention that records its calls."""
_NUM_TOKENS = 7
"""Tokens of the run on the meta device: no size of a model, so that a faulty shape does not fit by chance."""
_FAR = 1_000_000
"""A position behind any window."""
_HARMLESS = frozenset(
    {"dropout", "position_ids", "use_cache", "output_attentions", "cache_position", "is_causal", "sliding_window"}
)
"""Options that layers pass to attention and that change nothing: windows are read from the masks."""
_STATEFUL = re.compile(r"Conv1d|ShortConv|Mamba|SSM|Recurren|DeltaNet|Rwkv")
"""Parts of names of stateful classes."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's call of attention.

    Args:
        module: the name of the module that calls.
        head_dim: elements of a query or key head, or of a value head if that is larger.
    """

    module: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kind: LayerKind
    has_sinks: bool
    soft_cap: float | None


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The causal model on the meta device, its inner part, and the calls of attention, one per layer."""

    causal: Any
    calls: tuple[AttentionCall, ...]

    @property
    def config(self) -> Any:
        """transformers' own config."""
        return self.causal.config

    @property
    def renames(self) -> tuple[Rename, ...]:
        """Renames for older checkpoints."""
        return tuple(rule for rule in _conversions(self.causal) if isinstance(rule, Rename))

    @property
    def prefix(self) -> str:
        """The name of the inner model, which returns hidden states."""
        return str(self.causal.base_model_prefix)


def draw_blueprint(data: Mapping[str, Any], dtype: torch.dtype) -> Blueprint:
    """The blueprint of a `config.json`. Takes tenths of a second, and no memory for weights.

    Raises:
        ModelLoadError: `transformers` is missing or lacks the architecture, or a part of the model bypasses its
            attention interface.
    """
    architecture = data["architectures"][0]
    causal = _build(data, architecture, dtype)
    _refuse_state(causal, architecture)
    return Blueprint(causal, _probe(causal, architecture))


def installed() -> Any:
    """The module `transformers`. Raises ModelLoadError: it is not installed."""
    try:
        import transformers
    except ImportError:
        raise ModelLoadError(
            "model_impl='transformers' needs the library transformers; install lullm[transformers]"
        ) from None
    return transformers


def is_installed() -> bool:
    """Whether `transformers` is installed."""
    try:
        installed()
    except ModelLoadError:
        return False
    return True


def has_architecture(architecture: str) -> bool:
    """Whether the installed `transformers` has it as a causal language model."""
    if not is_installed():
        return False
    return architecture in installed().models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def reads_keys(data: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    """Whether the installed `transformers` has the architecture, and its config class declares all these keys."""
    if not has_architecture(data["architectures"][0]):
        return False
    transformers, model_type = installed(), data.get("model_type")
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        return False
    declared = {field.name for field in fields(transformers.CONFIG_MAPPING[model_type])}
    return set(keys) <= declared - {field.name for field in fields(transformers.PreTrainedConfig)}


def check_architecture(data: Mapping[str, Any], architecture: str) -> None:
    """Raises ModelLoadError: `transformers` is missing, or lacks the architecture."""
    transformers, model_type = installed(), data.get("model_type")
    if not has_architecture(architecture) or model_type not in transformers.CONFIG_MAPPING:
        own_code = "; lullm runs no code of a checkpoint (trust_remote_code)" if data.get("auto_map") else ""
        raise ModelLoadError(
            f"the installed transformers ({transformers.__version__}) has no causal language model {architecture!r} "
            f"(model_type {shown(model_type)}){own_code}; take a checkpoint of a known architecture (docs/models.md "
            "lists them), or a newer transformers"
        )


def _build(data: Mapping[str, Any], architecture: str, dtype: torch.dtype) -> Any:
    check_architecture(data, architecture)
    transformers, model_type = installed(), data["model_type"]
    _check_sizes(data)
    transformers.AttentionInterface.register(PROBE, _write_down)
    transformers.AttentionMaskInterface.register(PROBE, _MaskNote.of)
    try:
        config = transformers.CONFIG_MAPPING[model_type].from_dict(dict(data))
        with torch.device("meta"):
            causal = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=PROBE)
    except Exception as error:  # whatever its classes run into with this file
        has_own = isinstance(error, KeyError) and error.args == (PROBE,)  # it looks for attention in a table of its own
        reason = "it knows only the attentions that it has itself" if has_own else repr(error)
        raise ModelLoadError(
            f"transformers cannot build {architecture} over another attention than its own: {reason}; there is no way "
            "yet to run this architecture"
        ) from error
    if type(causal).__name__ != architecture:
        raise ModelLoadError(f"transformers makes a {type(causal).__name__} of this config.json, not a {architecture}")
    merged = [rule for rule in _conversions(causal) if not isinstance(rule, Rename)]
    if merged:
        raise ModelLoadError(
            f"transformers merges tensors of {architecture} as it loads them ({merged[0]}), which lullm does not; "
            "there is no way yet to run this architecture"
        )
    return causal.eval().requires_grad_(False)


_MOST: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"^(num_(hidden_)?layers|n_layers?)$"), MOST_LAYERS),
    (re.compile(r"position"), MOST_POSITIONS),
    (re.compile(r"vocab|length|seq_?len|window|_id$|^type_"), LARGEST_ID),
    (re.compile(r"head_(dim|size)|^d_(kv|k|v)$|kv_channels"), MOST_HEAD_DIM),
    (re.compile(r"heads?$"), MOST_HEADS),
    (re.compile(r"size|dim|width|inner|embd|channels|rank|^d_|experts"), MOST_INTERMEDIATE),
)
"""Bounds of numbers by patterns of keys; the first match counts. A rotary table of 100 million elements takes 1.7 GB
before transformers reports an error: tables have numbers even on the meta device.
"""


def _check_sizes(data: Mapping[str, Any]) -> None:
    """Check the sizes in all objects of the file. Raises ModelLoadError."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            _check_sizes(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            most = next((most for pattern, most in _MOST if pattern.search(str(key))), None)
            if most is not None and abs(value) > most:
                raise ModelLoadError(f"config.json: {key} must be at most {most}, not {shown(value)}")


def _conversions(causal: Any) -> list[Rename | str]:
    """transformers' changes of a checkpoint's tensors: renames, or a word for any other change."""
    mapping = importlib.import_module("transformers.conversion_mapping")
    rules = mapping.get_model_conversion_mapping(causal)
    return [
        Rename(re.compile("|".join(rule.source_patterns)), rule.target_patterns[0])
        if type(rule).__name__ == "WeightRenaming" and rule.scope_prefix is None
        else f"{', '.join(rule.source_patterns)} into {', '.join(rule.target_patterns)}"
        for rule in rules
    ]


def _refuse_state(causal: Any, architecture: str) -> None:
    """Refuse layers that mix tokens without attention."""
    states = [name for name, module in causal.named_modules() if _STATEFUL.search(type(module).__name__)]
    if causal._is_stateful or states:
        where = f" ({states[0]})" if states else ""
        raise ModelLoadError(f"{architecture} has layers that are recurrent or convolve{where}; {_ADVICE}")
    if any(True for _ in (*causal.parameters(recurse=False), *causal.buffers(recurse=False))):
        raise ModelLoadError(f"{architecture} has parameters beside its layers and its head; {_ADVICE}")


_ADVICE = "model_impl='transformers' runs models whose layers call transformers' attention interface, and no others"


class _MaskNote:
    """The visible keys of a mask, in place of a tensor: a layer that computes with its mask fails on it."""

    def __init__(self, allows: Callable[..., Any], window: int | None):
        self.allows, self.window = allows, window

    @classmethod
    def of(cls, mask_function: Callable[..., Any], local_size: int | None = None, **rest: Any) -> "_MaskNote":
        """The function that `transformers` calls to make a mask."""
        return cls(mask_function, local_size)

    def kind(self) -> LayerKind | None:
        """The kind of layer of this mask; None: neither causal nor with a window of fixed length."""
        first = 0 if self.window is None else _FAR - self.window + 1
        seen = [(_FAR, first), (_FAR, _FAR)]
        unseen = [(_FAR, _FAR + 1)] if self.window is None else [(_FAR, _FAR + 1), (_FAR, first - 1)]
        if self.window is not None:  # a chunk ends elsewhere a token later
            seen.append((_FAR + 1, first + 1))
            unseen.append((_FAR + 1, first))
        try:
            is_plain = all(self._sees(*pair) for pair in seen) and not any(self._sees(*pair) for pair in unseen)
        except (RuntimeError, NotImplementedError):  # it asks for numbers of the run
            return None
        if not is_plain:
            return None
        return FullAttention() if self.window is None else SlidingWindow(self.window)

    def _sees(self, query: int, key: int) -> bool:
        zero = torch.zeros((), dtype=torch.int64, device="cpu")
        return bool(self.allows(zero, zero, zero + query, zero + key))


class _Places(TorchFunctionMode):
    """Detects positions that the model counts anew: they would be wrong in a ragged batch."""

    def __init__(self) -> None:
        super().__init__()
        self.given = torch.zeros(1, _NUM_TOKENS, dtype=torch.int64, device="meta")
        self.are_used = self.has_own = False

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.max and args[0] is self.given:  # ropes that may stretch compare it, so it is a number
            return torch.zeros((), dtype=torch.int64, device="cpu")
        result = function(*args, **(kwargs or {}))
        self.are_used = self.are_used or any(value is self.given for value in args)
        if function is torch.arange and len(result) == _NUM_TOKENS:
            self.has_own = True
        return result


def _write_down(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """The attention of the run on the meta device."""
    module.lullm_notes.append((module, query, key, value, attention_mask, options))
    batch, heads, rows, _ = query.shape
    return query.new_empty(batch, rows, heads, value.shape[-1]), None


def _probe(causal: Any, architecture: str) -> tuple[AttentionCall, ...]:
    notes: list[tuple[Any, ...]] = []
    names = {module: name for name, module in causal.named_modules()}
    places = _Places()
    for module in names:
        module.lullm_notes = notes
    rows = torch.zeros(1, _NUM_TOKENS, dtype=torch.int64, device="meta")
    try:
        with torch.inference_mode(), torch.device("meta"), places:
            causal(input_ids=rows, position_ids=places.given, attention_mask=rows == 0, use_cache=False)
    except Exception as error:  # whatever its layers run into
        raise ModelLoadError(
            f"a layer of {architecture} computes attention, or with its mask or its tokens, by itself: {error!r}; "
            f"{_ADVICE}"
        ) from error
    if not places.are_used or places.has_own:
        raise ModelLoadError(f"{architecture} takes the positions of its tokens from their number; {_ADVICE}")
    num_layers = causal.config.num_hidden_layers
    callers = [names[note[0]] for note in notes]
    if len(set(callers)) != num_layers or len(callers) != num_layers:
        raise ModelLoadError(
            f"{architecture} has {num_layers} layers, and calls attention {len(callers)} times from "
            f"{len(set(callers))} modules; {_ADVICE}"
        )
    calls = tuple(_call(names[note[0]], note) for note in notes)
    if len({(call.num_kv_heads, call.head_dim, call.num_heads) for call in calls}) != 1:
        raise ModelLoadError(f"{architecture} has layers with heads of different size or number; {_ADVICE}")
    return calls


def _call(name: str, note: tuple[Any, ...]) -> AttentionCall:
    module, query, key, value, mask, options = note
    kind = mask.kind() if isinstance(mask, _MaskNote) else None
    if kind is None:
        raise ModelLoadError(f"{name} attends through a mask that is neither causal nor a sliding window; {_ADVICE}")
    sinks, soft_cap = options.pop("s_aux", None), options.pop("softcap", None)
    options.pop("scaling", None)
    if other := sorted(key for key, given in options.items() if given is not None and key not in _HARMLESS):
        raise ModelLoadError(f"{name} asks attention for {', '.join(other)}, which lullm's has not; {_ADVICE}")
    if options.get("is_causal") is False or not getattr(module, "is_causal", True):
        raise ModelLoadError(f"{name} attends to tokens behind the own one; {_ADVICE}")
    if sinks is None and any("sink" in name for name, _ in module.named_parameters()):
        raise ModelLoadError(f"{name} has attention sinks and does not hand them to attention; {_ADVICE}")
    heads, kv_heads, head_dim = query.shape[1], key.shape[1], max(query.shape[-1], value.shape[-1])
    if query.shape[2] != _NUM_TOKENS or key.shape[2] != _NUM_TOKENS or heads % kv_heads:
        raise ModelLoadError(f"{name} attends with other rows than one per token; {_ADVICE}")
    return AttentionCall(name, heads, kv_heads, head_dim, kind, sinks is not None, soft_cap)
