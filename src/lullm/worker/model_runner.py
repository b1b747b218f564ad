"""ModelRunner: owns a model, its arenas and its KV cache, and runs plans over them."""

from pathlib import Path

import torch

from lullm.arena.arena import ALIGNMENT, Arena
from lullm.arena.workspace import Workspace
from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.device.choice import open_device
from lullm.device.device import TORCH_DTYPES
from lullm.kv.layout import SCALE_BYTES, block_bytes
from lullm.log import get_logger
from lullm.models.registry import build_model
from lullm.nn.attention import add_kv_scales
from lullm.nn.kv_scale import KVScales
from lullm.ops.attention_layout import KVCache
from lullm.ops.float8_cache import FLOAT8
from lullm.ops.selection import select_ops
from lullm.ops.threads import StepThreads
from lullm.sampling.sampler import Sampler
from lullm.step.graphs import decode_sizes
from lullm.step.host_decode import workspace_bytes
from lullm.step.input import StepLimits
from lullm.step.runner import StepRunner
from lullm.types.draw import Draw, DrawParams
from lullm.types.packed import pack
from lullm.types.step import Running, Span, StepPlan, StepResult
from lullm.units import MIB, cdiv, format_bytes
from lullm.weights.dummy import fill_dummy_weights
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes
from lullm.weights.packing import pack_weights
from lullm.weights.quantization import quantize_model
from lullm.weights.store import WeightStore

logger = get_logger(__name__)

_GRAPH_BYTES = 4 * MIB
"""What the driver keeps for each recorded graph, about: a node for every kernel of every layer."""

_NUM_MEASURED_LAYERS = 4
"""Layers whose blocks are copied to see how quick that is: in all of them a huge page would be taken for good."""


class ModelRunner:
    """Built empty; `load_model`, then `initialize_cache`, then `execute` any number of times, then `close`.

    Weights and KV cache are views into arenas (`weights`, `kv_cache`, `kv_swap`) that this object owns; on a CPU the
    results of recorded steps lie in one (`graphs`), too.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig, folder: Path):
        assert config.max_model_len is not None, "resolve the config first"
        self._config = config
        self._model_config = model_config
        self._folder = folder
        self._dtype = TORCH_DTYPES[config.dtype]
        self.device = open_device(config.device)
        self._ops = select_ops(config.device, config.attention_backend)
        self._threads = StepThreads(config.threads)
        self.arenas: list[Arena] = []
        self.kv_caches: list[KVCache] = []
        self.host_kv_caches: list[KVCache] = []
        self._sampler = Sampler(model_config.vocab_size, config.logprobs_mode, self._ops.draw_tokens)

    def load_model(self) -> None:
        """Build the model and fill its weights. Blocking. Raises ModelLoadError, CacheSizeError."""
        assert self._config.max_model_len is not None
        self.model = build_model(self._model_config, self._dtype, self._config.max_model_len)
        if self._config.quantization is not None:
            quantize_model(self.model, self._config.quantization)
        if self._config.kv_dtype == "fp8_e4m3":
            add_kv_scales(self.model)
        arena = self._keep(self.device.new_arena("weights", weights_bytes(self.model)))
        materialize(self.model, arena)
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):  # small, computed, and never asleep
                setattr(module, name, buffer.to(self.device.torch_device))
        is_verified = self._config.enable_sleep_mode and self._config.verify_wake
        self.model.store = WeightStore(self.model, self._ops, lambda: self.fill_weights(), is_verified)
        self.model.store.load()
        logger.info(
            "weights: %s in %s", format_bytes(arena.used_bytes), self._config.quantization or self._config.dtype
        )

    def fill_weights(self) -> None:
        """Read the weights from where they come from into their places. Blocking. Raises ModelLoadError."""
        for scales in self._kv_scales():
            scales.forget_given()
        with self._threads.scope():
            if self._config.load_format == "dummy":
                fill_dummy_weights(self.model, self._config.seed or 0)
            else:
                load_weights(self.model, self._folder, self._threads.num_threads)
            pack_weights(self.model, self._ops)

    def initialize_cache(self, num_blocks: int, num_host_blocks: int) -> None:
        """Map both pools of the KV cache, and get ready for steps. Blocking; on a GPU graphs are recorded.

        On a CPU memory is taken as blocks are first written.
        """
        self.kv_caches = self._map_blocks("kv_cache", num_blocks)
        self.host_kv_caches = self._map_blocks("kv_swap", num_host_blocks) if num_host_blocks else []
        workspace = None
        if self._records_graphs and not self.device.is_accelerator:
            arena = self.device.new_arena("graphs", workspace_bytes(self._model_config, self._config.max_num_seqs))
            workspace = Workspace(self._keep(arena))
        self._steps = self._new_step_runner(self.kv_caches, self.host_kv_caches, workspace)
        if self._records_graphs and self.device.is_accelerator:
            self._steps.capture_graphs(decode_sizes(self._config.max_num_seqs))
        self.reset_kv_scales()

    def reset_kv_scales(self) -> None:
        """Start over with the scales of an fp8 cache; no block may hold anything. Blocking. Any other cache has none.

        The checkpoint's are back, the others 1 or, with `calculate_kv_scales`, those of the next step's tokens.
        """
        is_open = [scales.reset() for scales in self._kv_scales()]
        self._steps.calibrates = self._config.calculate_kv_scales and any(is_open)

    def _kv_scales(self) -> list[KVScales]:
        """By layer; empty if the cache is not fp8."""
        return [module for module in self.model.modules() if isinstance(module, KVScales)]

    def kv_memory_bytes(self) -> int:
        """Memory that is there for the KV cache. Blocking.

        On a GPU: `gpu_memory_utilization` of all there is, less what is taken after a run of the largest batch, whose
        activations torch's allocator keeps, and less what graphs will take.
        """
        info = self.device.memory_info()
        if not self.device.is_accelerator:
            return info.free_bytes
        config = self._config
        if config.num_gpu_blocks_override is not None or config.kv_cache_memory_bytes is not None:
            return info.free_bytes
        assert config.gpu_memory_utilization is not None, "resolve the config first"
        largest = self._profile(max(config.max_num_batched_tokens // config.max_num_seqs, 1))
        graphs = 0
        if self._records_graphs:
            graphs = self._profile(1) + _GRAPH_BYTES * len(decode_sizes(config.max_num_seqs))
        info = self.device.memory_info()
        taken = info.total_bytes - info.free_bytes
        available = int(info.total_bytes * config.gpu_memory_utilization) - taken - graphs
        logger.info(
            "memory: %s in all, %s taken (activations up to %s), %s for graphs, %s left for the KV cache",
            *map(format_bytes, (info.total_bytes, taken, largest, graphs, max(available, 0))),
        )
        return available

    def _profile(self, query_len: int) -> int:
        """The most memory that a step with `max_num_seqs` spans of so many tokens takes beside weights and KV cache.

        All spans write over each other in one block, which is harmless: nobody looks at what comes out.
        """
        config = self._config
        shape, dtype = self._block_shape()
        caches = [
            tuple(torch.zeros((1, *shape), dtype=dtype, device=self.device.torch_device) for _ in "kv")
            for _ in range(self._model_config.num_hidden_layers)
        ]
        steps = self._new_step_runner(caches, [])
        assert config.max_model_len is not None
        query_len = min(query_len, config.max_model_len)
        tokens, blocks = pack([0] * query_len), (pack([0] * cdiv(query_len, config.block_size)),)
        params = DrawParams(temperature=1.0, top_p=0.9)
        spans = []
        for number in range(min(config.max_num_seqs, config.max_num_batched_tokens // query_len)):
            spans.append(Span(number, 0, tokens, blocks, (Draw(number, query_len - 1, params),)))
        return self.device.peak_bytes(lambda: steps.launch(StepPlan(spans)).result())

    def measure_speeds(self) -> tuple[float, float]:
        """(bytes per second between the pools, tokens per second of prefill), from one short run of each.

        Writes into the first blocks of both pools, which must be free. A prompt of 64 tokens and a few blocks say
        enough to start with; the scheduler corrects both from the steps it sees.
        """
        config, num_layers = self._config, min(_NUM_MEASURED_LAYERS, len(self.kv_caches))
        assert config.max_model_len is not None
        num_slots = len(self.kv_caches[0][0]) * config.block_size  # with a window fewer than max_model_len, perhaps
        num_tokens = min(64, config.max_num_batched_tokens, config.max_model_len, num_slots)
        blocks = range(min(cdiv(num_tokens, config.block_size), len(self.host_kv_caches[0][0])))
        pairs = [(block_id, block_id) for block_id in blocks]
        prompt = Span(0, 0, pack([0] * num_tokens), (pack(range(cdiv(num_tokens, config.block_size))),))
        for _ in range(2):  # the first run meets cold kernels and untouched pages
            result = self.execute(StepPlan([prompt]))
            swap_s = self._time_swap(num_layers, pairs)
        self.reset_kv_scales()  # of a prompt that nobody wrote
        size = len(pairs) * block_bytes(self._model_config, config.block_size, config.kv_dtype)
        copied = size * num_layers // len(self.kv_caches)
        return copied / max(swap_s, 1e-9), num_tokens / max(result.compute_s, 1e-9)

    def _time_swap(self, num_layers: int, pairs: list[tuple[int, int]]) -> float:
        def swap() -> tuple[object, object]:
            started = self.device.mark()
            with torch.inference_mode():
                self._ops.swap_blocks(self.kv_caches[:num_layers], self.host_kv_caches[:num_layers], pairs)
            return started, self.device.mark()

        return self.device.seconds_between(*self.device.start(swap).result())

    def launch(self, plan: StepPlan) -> Running[StepResult]:
        """Start a step; results are to be asked for in order. The plan may change once this returns."""
        return self._steps.launch(plan)

    def execute(self, plan: StepPlan) -> StepResult:
        """Move and copy blocks, run the model over the spans, draw tokens. Blocking."""
        return self._steps.launch(plan).result()

    def close(self) -> None:
        """Give all memory back. Idempotent."""
        self.device.synchronize()
        self.kv_caches, self.host_kv_caches = [], []
        for arena in self.arenas:
            arena.close()
        self.arenas = []

    def _new_step_runner(
        self, kv_caches: list[KVCache], host_kv_caches: list[KVCache], workspace: Workspace | None = None
    ) -> StepRunner:
        config = self._config
        assert config.max_model_len is not None
        limits = StepLimits(
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.max_model_len,
            config.block_size,
            self._model_config.sliding_window,
        )
        return StepRunner(
            self.device,
            self._ops,
            self.model,
            kv_caches,
            host_kv_caches,
            self._sampler,
            limits,
            self._threads.scope,
            runs_ahead=bool(config.async_scheduling),
            decode_sizes=decode_sizes(config.max_num_seqs),
            workspace=workspace,
        )

    @property
    def _records_graphs(self) -> bool:
        return self._ops.is_recordable and not self._config.enforce_eager

    def _block_shape(self) -> tuple[tuple[int, int, int], torch.dtype]:
        """Of one block in one tensor of a layer."""
        config, model = self._config, self._model_config
        row_len = model.head_dim + (SCALE_BYTES if config.kv_dtype == "int8" else 0)
        dtype = {"int8": torch.int8, "fp8_e4m3": FLOAT8}.get(config.kv_dtype, self._dtype)
        return (config.block_size, model.num_key_value_heads, row_len), dtype

    def _map_blocks(self, tag: str, num_blocks: int) -> list[KVCache]:
        """A pool of blocks in an arena of its own."""
        model, config = self._model_config, self._config
        size = num_blocks * block_bytes(model, config.block_size, config.kv_dtype)
        # Room for the alignment of each layer's two tensors.
        new_arena = self.device.new_arena if tag == "kv_cache" else self.device.new_host_arena
        arena = self._keep(new_arena(tag, size + 2 * ALIGNMENT * model.num_hidden_layers))
        block_shape, dtype = self._block_shape()
        shape = (num_blocks, *block_shape)
        logger.info("%s: %d blocks of %d tokens, %s", tag, num_blocks, config.block_size, format_bytes(size))
        return [(arena.empty(shape, dtype), arena.empty(shape, dtype)) for _ in range(model.num_hidden_layers)]

    def _keep(self, arena: Arena) -> Arena:
        self.arenas.append(arena)
        return arena
