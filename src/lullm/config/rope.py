"""RopeConfig: how one layer rotates queries and keys.

Both spellings are read: `rope_theta` + `rope_scaling`, and the newer `rope_parameters`.
"""

from dataclasses import dataclass
from typing import Literal, cast, get_args

from lullm.config.field import MOST_HEAD_DIM, Data, boolean, optional_object, positive_float, positive_int, shown
from lullm.errors import ModelLoadError

RopeType = Literal["default", "linear", "dynamic", "ntk", "llama3", "yarn", "longrope", "proportional"]
_ROPE_TYPES = get_args(RopeType)

MOST_POSITIONS = 1 << 25
"""The longest known model has 10,485,760 positions."""
_LARGEST_FACTOR = 1e6
_DEFAULT_THETA = 10000.0
ROPE_KEYS = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings"})
"""The keys about ropes in a `config.json`."""
_READ_PARAMETERS = frozenset(
    {
        "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor",
        "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale",
        "mscale_all_dim", "truncate", "short_factor", "long_factor",
    }
)  # fmt: skip
_IGNORED_PARAMETERS = frozenset({"finetuned"})
"""Keys of the object without effect: YaRN's files note whether the model was trained so."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base frequency, and how it is stretched beyond the trained length.

    Args:
        partial_rotary_factor: the share of a head that is rotated, from its start. With `proportional`, the share of
            the pairs that turn, at the places that they would have if all did.
        short_factor, long_factor: of `longrope`, one per pair.
    """

    rope_theta: float = 10000.0
    rope_type: RopeType = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    partial_rotary_factor: float = 1.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def rotary_dim(self, head_dim: int) -> int:
        """Elements of a head that are rotated."""
        return head_dim if self.rope_type == "proportional" else int(head_dim * self.partial_rotary_factor)

    def reach(self, max_positions: int) -> int:
        """The longest sequence that it is stretched to, in a file with `max_positions`.

        Publishers add YaRN to a file and leave `max_position_embeddings` as it was (Qwen 2.5 and 3), and some count a
        linear factor in (DeepSeek-Coder) while others do not (Vicuna 16k).
        """
        if self.rope_type == "yarn" and self.original_max_position_embeddings is not None:
            return max(max_positions, int(self.original_max_position_embeddings * self.factor))
        return int(max_positions * max(self.factor, 1.0)) if self.rope_type in ("linear", "dynamic") else max_positions


def read_theta(data: Data, name: str, default: float) -> float:
    """A base frequency. At 1 all pairs of a head would turn alike; the largest known is 1e11."""
    return positive_float(data, name, default, least=1.1, most=1e18)


def stated_rope(data: Data) -> tuple[str, Data]:
    """(the key of the rope's parameters, the parameters): the older key, if it has any. Raises ModelLoadError."""
    scaling = optional_object(data, "rope_scaling")
    return ("rope_scaling", scaling) if scaling else ("rope_parameters", optional_object(data, "rope_parameters"))


def read_flat_rope(data: Data, has_partial: bool = False, ignores: frozenset[str] = frozenset()) -> RopeConfig:
    """The one rope of all layers, in the newer or the older spelling. Raises ModelLoadError as `read_rope` does.

    `ignores`: parameters without effect in this family.
    """
    parameters = {key: value for key, value in stated_rope(data)[1].items() if key not in ignores}
    return read_rope(data, parameters, read_theta(data, "rope_theta", _DEFAULT_THETA), has_partial)


def read_ropes_by_kind(
    data: Data, full_theta: float, local_theta: float, has_partial: bool = False
) -> tuple[RopeConfig, RopeConfig]:
    """(of the layers with full attention, of those with a window). `rope_scaling` stretches the former only.

    Args:
        full_theta, local_theta: where the parameters name no base frequency.
    """
    nested = optional_object(data, "rope_parameters")
    kinds = ("full_attention", "sliding_attention")
    if not set(nested) <= set(kinds):
        raise ModelLoadError(f"config.json: rope_parameters must hold objects named {' and '.join(kinds)}")
    scaling = optional_object(data, "rope_scaling")
    full, local = (optional_object(nested, kind) for kind in kinds)
    return read_rope(data, full | scaling, full_theta, has_partial), read_rope(data, local, local_theta, has_partial)


def _check_parameters(parameters: Data) -> None:
    """Refuse keys that are not read: one object per layer type, `mrope_section`, `llama_4_scaling_beta`."""
    known = _READ_PARAMETERS | _IGNORED_PARAMETERS
    if unknown := [
        f"{key} {shown(value)}" for key, value in parameters.items() if key not in known and value is not None
    ]:
        raise ModelLoadError(
            f"config.json: rope_parameters or rope_scaling hold {', '.join(unknown)}, which this architecture does not "
            "implement; take a checkpoint without it"
        )


def read_rope(data: Data, parameters: Data, default_theta: float, has_partial: bool = False) -> RopeConfig:
    """Read a rope from a whole `config.json` and the object in it with the rope's parameters.

    Args:
        default_theta: the base frequency where the parameters name none.
        has_partial: whether the family rotates a part of a head.

    Raises:
        ModelLoadError: a field is invalid, or the kind is not supported.
    """
    _check_parameters(parameters)
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    if rope_type not in _ROPE_TYPES:
        raise ModelLoadError(f"config.json: rope_type {shown(rope_type)} is not one of {', '.join(_ROPE_TYPES)}")
    partial = _read_partial(data, parameters, rope_type, has_partial)
    original, factor = _read_scale(data, parameters, rope_type)
    low, high = _factor(parameters, "low_freq_factor", 1.0), _factor(parameters, "high_freq_factor", 4.0)
    if low > high:
        raise ModelLoadError(f"config.json: low_freq_factor ({low}) must not be above high_freq_factor ({high})")
    fast, slow = _factor(parameters, "beta_fast", 32.0), _factor(parameters, "beta_slow", 1.0)
    if fast < slow:
        raise ModelLoadError(f"config.json: beta_fast ({fast}) must not be below beta_slow ({slow})")
    return RopeConfig(
        rope_theta=read_theta(parameters, "rope_theta", default_theta),
        rope_type=cast(RopeType, rope_type),
        factor=factor,
        original_max_position_embeddings=original,
        low_freq_factor=low,
        high_freq_factor=high,
        beta_fast=fast,
        beta_slow=slow,
        attention_factor=_optional_factor(parameters, "attention_factor"),
        mscale=_optional_factor(parameters, "mscale"),
        mscale_all_dim=_optional_factor(parameters, "mscale_all_dim"),
        truncate=boolean(parameters, "truncate", True),
        partial_rotary_factor=partial,
        short_factor=_factors(parameters, "short_factor"),
        long_factor=_factors(parameters, "long_factor"),
    )


def _read_partial(data: Data, parameters: Data, rope_type: str, has_partial: bool) -> float:
    """The part of a head that is rotated."""
    name = "partial_rotary_factor"
    partial = positive_float(parameters, name, positive_float(data, name, 1.0))
    if partial > 1 or partial != 1 and not has_partial and rope_type != "proportional":
        raise ModelLoadError(
            f"config.json: {name} {partial!r} is not supported, only {'up to ' if has_partial else ''}1.0"
        )
    return partial


def _read_scale(data: Data, parameters: Data, rope_type: str) -> tuple[int | None, float]:
    """(the positions of the model's first training, the factor of the stretched length)."""
    name = "original_max_position_embeddings"
    sources = [source for source in (parameters, data) if source.get(name) is not None]
    original = next((positive_int(source, name, most=MOST_POSITIONS) for source in sources), None)
    factor = _factor(parameters, "factor", 1.0)
    if rope_type in ("dynamic", "llama3", "yarn", "longrope"):
        max_len = positive_int(data, "max_position_embeddings", most=MOST_POSITIONS)
        original = original or max_len
        if rope_type in ("yarn", "longrope") and parameters.get("factor") is None:
            factor = max_len / original
    return original, factor


def _factors(parameters: Data, name: str) -> tuple[float, ...]:
    values = parameters.get(name) or []
    if not isinstance(values, list) or len(values) > MOST_HEAD_DIM:
        raise ModelLoadError(f"config.json: {name} must be a list of numbers, not {shown(values)}")
    return tuple(_factor({name: value}, name, 1.0) for value in values)


def _factor(parameters: Data, name: str, default: float) -> float:
    """From 1e-6 to 1e6: beyond, frequencies in float32 become infinite or NaN."""
    return positive_float(parameters, name, default, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR)


def _optional_factor(parameters: Data, name: str) -> float | None:
    return None if parameters.get(name) is None else _factor(parameters, name, 1.0)
