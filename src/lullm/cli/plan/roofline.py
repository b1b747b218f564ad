"""The needs of a model on one machine: sizes of weights and KV cache, and speeds from the work of a step."""

from dataclasses import dataclass

from lullm.cli.plan.beside import Beside
from lullm.cli.plan.model import PlannedModel
from lullm.cli.plan.needs import Needs, shown_held
from lullm.errors import CacheSizeError
from lullm.units import MIB

PROCESS_BYTES = 450 * MIB
"""Memory of Python, torch and a step's activations, beside weights and KV cache: 0.35 to 0.45 GiB measured."""
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Needs):
    """One format of a model in one memory. `num_tokens`: the capacity of the cache in what remains."""

    num_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine: bytes of memory, bytes read and operations computed per second."""

    memory_bytes: int
    bytes_per_s: float
    operations_per_s: float


class Part:
    """A model, or one worker's part of it, built without memory: its needs, and the work of a step.

    Args:
        beside: what is held beside the model. num_workers: that share each layer, and the draft model.

    Attributes:
        weights_bytes: of its weights. adapters_bytes, draft_bytes: as in `Needs`. block_bytes: of a block of the KV
            cache, the draft model's part included. num_layers: of its layers.

    Raises:
        ConfigError: the workers cannot share the draft model. ModelLoadError: no layer may have adapters.
    """

    def __init__(
        self,
        model: PlannedModel,
        quantization: str | None,
        kv_cache_dtype: str,
        beside: Beside | None = None,
        num_workers: int = 1,
    ):
        from lullm.kv.layout import block_bytes
        from lullm.weights.materialize import weights_bytes

        self._config = config = model.config
        self._plain = model.plain()
        self._held = model.built(quantization)
        self._kv_dtype = {"auto": config.dtype, "fp8": "fp8_e4m3"}.get(kv_cache_dtype, kv_cache_dtype)
        self.weights_bytes = weights_bytes(self._held)
        self._own_block_bytes = self.block_bytes = block_bytes(config, BLOCK_SIZE, self._kv_dtype)
        self.num_layers = len(config.layers)
        beside = beside or Beside()
        self.adapters_bytes, self.draft_bytes = beside.adapters_bytes(self._held, config, model.on_gpu), 0
        if beside.draft is not None:
            draft = beside.draft.of_worker(num_workers)
            self.draft_bytes = weights_bytes(draft.built(beside.draft.quantization))
            self.block_bytes += block_bytes(draft.config, BLOCK_SIZE, self._kv_dtype)

    @property
    def held_bytes(self) -> int:
        """All but the KV cache."""
        return self.weights_bytes + self.adapters_bytes + self.draft_bytes

    def num_blocks(self, length: int) -> int:
        """Blocks of a sequence of `length` tokens."""
        from lullm.kv.layout import num_blocks_for_len

        return num_blocks_for_len(self._config, BLOCK_SIZE, self._kv_dtype, length)

    def least_s(self, machine: Machine, num_rows: int, num_logits: int, num_blocks: int) -> float:
        """Seconds of a step with these numbers of tokens, rows of logits, and read blocks."""
        from lullm.models.work import bytes_read, operations

        reading = bytes_read(self._held, self._config, num_rows) + num_blocks * self._own_block_bytes
        products = operations(self._plain, self._config, num_rows, num_logits)
        return max(reading / machine.bytes_per_s, products / machine.operations_per_s)


def plan(
    model: PlannedModel,
    machine: Machine,
    length: int,
    concurrency: int,
    kv_cache_dtype: str,
    quantization: str | None,
    beside: Beside | None = None,
) -> Plan:
    """The plan for one format of the weights. `length`: tokens of a sequence. Raises as `Part` does."""
    part = Part(model, quantization, kv_cache_dtype, beside)
    blocks = part.num_blocks(length)
    per_sequence = blocks * part.block_bytes
    left = max(machine.memory_bytes - part.held_bytes - PROCESS_BYTES, 0)
    prefill = length / part.least_s(machine, length, 1, 0)
    if model.config.family.encoder_only is not None:
        return Plan(
            weights=model.held(quantization),
            weights_bytes=part.weights_bytes,
            prefill=prefill,
            adapters_bytes=part.adapters_bytes,
        )
    return Plan(
        weights=model.held(quantization),
        weights_bytes=part.weights_bytes,
        kv_bytes_per_token=per_sequence / length,
        num_tokens=int(left / (per_sequence / length)),
        num_sequences=int(left // per_sequence),
        decode=1 / part.least_s(machine, 1, 1, blocks),
        batch_decode=concurrency / part.least_s(machine, concurrency, concurrency, concurrency * blocks),
        prefill=prefill,
        adapters_bytes=part.adapters_bytes,
        draft_bytes=part.draft_bytes,
    )


def advice(plans: list[Plan], length: int, concurrency: int) -> str:
    """The recommended plan, and why: the most exact one with enough room."""
    for each in plans:
        if each.num_sequences >= concurrency:
            flag = "" if each is plans[0] else f" (--quantization {each.weights})"
            return f"Take {each.weights}{flag}: it has room for {each.num_sequences} sequences of {length} tokens."
    most = max(plans, key=lambda each: each.num_sequences)
    if most.num_sequences == 0:
        raise CacheSizeError(
            f"no sequence of {length} tokens fits beside {shown_held(most)}; lower --len, or take a smaller model"
        )
    return (
        f"{concurrency} sequences of {length} tokens fit in none; {most.weights} has room for {most.num_sequences}, "
        "the others wait or are swapped. Lower --len, or try --kv-cache-dtype int8."
    )
