"""The needs of a model on several devices, for each layout of its workers."""

from dataclasses import dataclass, replace

from lullm.cli.plan.beside import Beside
from lullm.cli.plan.gpu import GPU
from lullm.cli.plan.model import PlannedModel
from lullm.cli.plan.needs import Needs, shown_held
from lullm.cli.plan.roofline import PROCESS_BYTES, Machine, Part
from lullm.config.model import ModelConfig
from lullm.config.parallel.cut import first_layers
from lullm.config.parallel.share import share_of
from lullm.errors import CacheSizeError, ConfigError
from lullm.types.parallel.placement import Axis
from lullm.types.parallel.stage import PipelineStage
from lullm.units import GIB, cdiv, format_bytes

GPU_BYTES = GIB
"""Rough memory of a GPU's driver, a step's activations and recorded graphs."""
GPU_LATENCY_S = 20e-6
HOST_LATENCY_S = 20e-6
"""Latency of one sum over all workers, beside the time for its bytes; an estimate."""
CHUNK_TOKENS = 2048
"""Tokens of a prompt in a step, so that the stages of a pipeline work in parallel: an engine's default."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Equal devices, one for each worker.

    Attributes:
        each: one device; its memory is for weights and KV cache only. link_bytes_per_s: between two devices. latency_s:
            of a sum over all.
    """

    count: int
    each: Machine
    link_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The workers that share each layer (`tensor`), the stages, and the replicas."""

    tensor: int
    pipeline: int
    data: int

    @property
    def flags(self) -> str:
        """For the command line of an engine."""
        sizes = {"tensor-parallel": self.tensor, "pipeline-parallel": self.pipeline, "data-parallel": self.data}
        return " ".join(f"--{name}-size {size}" for name, size in sizes.items() if size > 1) or "one worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan(Needs):
    """One layout. `num_blocks`: of the KV cache of a replica."""

    layout: Layout
    num_blocks: int


def gpus(count: int, gpu: GPU, utilization: float) -> Devices:
    """`count` GPUs; an engine takes the share `utilization` of their memory."""
    room = max(int(gpu.memory_gib * GIB * utilization) - GPU_BYTES, 0)
    each = Machine(room, gpu.gb_per_s * 1e9, gpu.tflops * 1e12)
    return Devices(count, each, gpu.link_gb_per_s * 1e9, GPU_LATENCY_S)


def processes(count: int, machine: Machine) -> Devices:
    """`count` worker processes of one machine, which divide its memory and cores."""
    room = max(machine.memory_bytes // count - PROCESS_BYTES, 0)
    each = Machine(room, machine.bytes_per_s / count, machine.operations_per_s / count)
    return Devices(count, each, each.bytes_per_s, HOST_LATENCY_S)


def layouts(count: int, tensor: int | None, pipeline: int | None, data: int | None) -> list[Layout]:
    """All layouts of `count` workers with the given sizes. Raises ConfigError: there is none."""
    found = [
        Layout(by_tensor, by_pipeline, count // (by_tensor * by_pipeline))
        for by_tensor in range(1, count + 1)
        for by_pipeline in range(1, count // by_tensor + 1)
        if count % (by_tensor * by_pipeline) == 0
    ]
    wanted = (tensor, pipeline, data)
    found = [
        each
        for each in found
        if all(want in (None, size) for want, size in zip(wanted, (each.tensor, each.pipeline, each.data), strict=True))
    ]
    if not found:
        given = " x ".join("any" if size is None else str(size) for size in wanted)
        raise ConfigError(f"tensor x pipeline x data = {given} does not make {count} workers; change one of them")
    return found


class Planner:
    """Plans layouts of one model. Parts of several layouts are built once."""

    def __init__(
        self, model: PlannedModel, quantization: str | None, kv_cache_dtype: str, beside: Beside | None = None
    ):
        self._beside = beside or Beside()
        self._model = model
        self._quantization = quantization
        self._kv_cache_dtype = kv_cache_dtype
        self._stages: dict[tuple[int, int], list[Part]] = {}
        self._layer_bytes: list[int] | None = None

    def plan(self, layout: Layout, devices: Devices, length: int, concurrency: int) -> LayoutPlan:
        """Plan one layout. `length`: tokens of a sequence. Raises ConfigError: the model cannot be divided so."""
        if self._model.config.family.encoder_only is not None:
            raise ConfigError(
                f"{self._model.config.architecture} is an encoder, which keeps nothing between steps: it needs its "
                f"weights ({format_bytes(self._parts(1, 1)[0].weights_bytes)}) and no KV cache; nothing is to plan"
            )
        self._beside.check_layout(layout.tensor, layout.pipeline)
        stages = self._parts(layout.tensor, layout.pipeline)
        pipe = _Pipe(stages, layout.tensor, devices, self._model.config)
        blocks = stages[0].num_blocks(length)
        room = devices.each.memory_bytes
        num_blocks = min(max(room - part.held_bytes, 0) // part.block_bytes for part in stages)
        of_replica = cdiv(concurrency, layout.data)
        in_flight = min(layout.pipeline, of_replica)
        rows = cdiv(of_replica, in_flight)
        batch = pipe.seconds(rows, rows, rows * blocks)
        chunks = cdiv(length, CHUNK_TOKENS)
        prompt = pipe.seconds(cdiv(length, chunks), 1, 0)
        return LayoutPlan(
            layout=layout,
            weights=self._model.held(self._quantization),
            weights_bytes=max(part.weights_bytes for part in stages),
            kv_bytes_per_token=max(part.block_bytes for part in stages) * blocks / length,
            num_blocks=num_blocks,
            num_sequences=num_blocks // blocks * layout.data,
            decode=1 / sum(pipe.seconds(1, 1, blocks)),
            batch_decode=concurrency / max(sum(batch), in_flight * max(batch)),
            prefill=length / (sum(prompt) + (chunks - 1) * max(prompt)),
            adapters_bytes=max(part.adapters_bytes for part in stages),
            draft_bytes=max(part.draft_bytes for part in stages),
        )

    def _parts(self, tensor: int, pipeline: int) -> list[Part]:
        """The stages, each as its first worker has it."""
        if (tensor, pipeline) not in self._stages:
            cut = self._cut(pipeline)
            stages = [replace(self._model.config, stage=PipelineStage(stage, cut)) for stage in range(pipeline)]
            configs = [share_of(stage, Axis(0, tensor)) for stage in stages]
            ways = self._quantization, self._kv_cache_dtype, self._beside, tensor
            parts = [Part(self._model.part(each), *ways) for each in configs]
            self._stages[tensor, pipeline] = parts
        return self._stages[tensor, pipeline]

    def _cut(self, num_stages: int) -> tuple[int, ...]:
        """Layers of each stage, as an engine cuts them. Raises ConfigError: there are too few."""
        from lullm.models.stages import even_cut, layer_bytes

        if num_stages == 1:
            return ()
        first = first_layers(self._model.config)
        if self._layer_bytes is None:
            self._layer_bytes = layer_bytes(self._model.config, self._quantization)
        cut = even_cut(self._layer_bytes, num_stages, first)
        if cut is None:
            raise ConfigError(f"{len(self._layer_bytes)} layers cannot be cut into {num_stages} stages")
        return cut


@dataclass(frozen=True, slots=True)
class _Pipe:
    """The stages of one replica."""

    stages: list[Part]
    tensor: int
    devices: Devices
    model: ModelConfig

    def seconds(self, num_rows: int, num_logits: int, num_blocks: int) -> list[float]:
        """Seconds of a step on each stage: memory or products, two sums over the workers in each layer, and the
        transfer to the next.
        """
        devices = self.devices
        hidden_bytes = num_rows * self.model.hidden_size * 2
        # All receive every other's part, and add in the same order: (tensor - 1) parts come to each.
        sums = 2 * ((self.tensor - 1) * hidden_bytes / devices.link_bytes_per_s + devices.latency_s)
        way_on = hidden_bytes / devices.link_bytes_per_s + devices.latency_s
        found = [part.least_s(devices.each, num_rows, num_logits, num_blocks) for part in self.stages]
        if self.tensor > 1:
            found = [s + part.num_layers * sums for s, part in zip(found, self.stages, strict=True)]
        return [s + way_on * (number < len(found) - 1) for number, s in enumerate(found)]


def layout_advice(plans: list[LayoutPlan], length: int, concurrency: int) -> str:
    """The recommended layout, and why: of those with enough room, the one that decodes fastest."""
    roomy = [each for each in plans if each.num_sequences >= concurrency]
    if not roomy:
        most = max(plans, key=lambda each: each.num_sequences)
        if most.num_sequences == 0:
            least = min(plans, key=lambda each: each.weights_bytes)
            raise CacheSizeError(
                f"no sequence of {length} tokens fits on a device beside {shown_held(least)}; take more devices, lower "
                "--len, or take a smaller model"
            )
        return (
            f"{concurrency} sequences of {length} tokens fit in no layout; {most.layout.flags} has room for "
            f"{most.num_sequences}, the others wait or are swapped. Lower --len, or take more devices."
        )
    best = max(roomy, key=lambda each: each.batch_decode)
    text = (
        f"Take {best.layout.flags}: of the layouts with room for {concurrency} sequences of {length} tokens, it "
        f"decodes them fastest, {best.batch_decode:.0f} tokens a second together"
    )
    single = max(roomy, key=lambda each: each.decode)
    if single.decode > 1.05 * best.decode:
        text += (
            f". One sequence alone is fastest with {single.layout.flags}: {single.decode:.0f} tokens a second, "
            f"against {best.decode:.0f}"
        )
    return f"{text}."
