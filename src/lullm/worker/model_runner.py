"""ModelRunner: owns a model, its arenas and its KV cache, and runs one plan at a time."""

import time
from pathlib import Path

import torch

from lullm.arena.host import ALIGNMENT, HostArena
from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.kv.layout import SCALE_BYTES, block_bytes
from lullm.log import get_logger
from lullm.models.registry import build_model
from lullm.ops.attention_layout import KVCache
from lullm.ops.table import select_ops
from lullm.types.step import DrawnToken, Span, StepPlan, StepResult, TokenLogprobs
from lullm.units import cdiv, format_bytes
from lullm.weights.dummy import fill_dummy_weights
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes
from lullm.weights.packing import pack_weights
from lullm.worker.batch import BatchBuilder
from lullm.worker.device import TORCH_DTYPES
from lullm.worker.sampler import Sampler

logger = get_logger(__name__)

PROMPT_LOGPROB_ROWS = 256
"""Rows whose logits exist at once for prompt log-probabilities: 256 x 151,936 float32 are 148 MiB."""


class ModelRunner:
    """Built empty; `load_model`, then `initialize_cache`, then `execute` any number of times, then `close`.

    Weights and KV cache are views into arenas (`weights`, `kv_cache`, `kv_swap`) that this object owns.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig, folder: Path):
        assert config.max_model_len is not None, "resolve the config first"
        self._config = config
        self._model_config = model_config
        self._folder = folder
        self._dtype = TORCH_DTYPES[config.dtype]
        self._ops = select_ops(config.device)
        self.arenas: list[HostArena] = []
        self.kv_caches: list[KVCache] = []
        self.host_kv_caches: list[KVCache] = []
        self._batches = BatchBuilder(
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.max_model_len,
            config.block_size,
            model_config.sliding_window,
        )
        self._sampler = Sampler(model_config.vocab_size, config.logprobs_mode)

    def load_model(self) -> None:
        """Build the model and fill its weights. Blocking. Raises ModelLoadError, CacheSizeError."""
        assert self._config.max_model_len is not None
        self.model = build_model(self._model_config, self._dtype, self._config.max_model_len)
        arena = self._new_arena("weights", weights_bytes(self.model))
        materialize(self.model, arena)
        self.fill_weights()
        logger.info("weights: %s in %s", format_bytes(arena.used_bytes), self._config.dtype)

    def fill_weights(self) -> None:
        """Read the weights from where they come from into their places. Blocking. Raises ModelLoadError."""
        if self._config.load_format == "dummy":
            fill_dummy_weights(self.model, self._config.seed or 0)
        else:
            load_weights(self.model, self._folder)
        pack_weights(self.model, self._ops)

    def initialize_cache(self, num_blocks: int, num_host_blocks: int) -> None:
        """Map both pools of the KV cache; memory is taken as blocks are first written."""
        self.kv_caches = self._map_blocks("kv_cache", num_blocks)
        self.host_kv_caches = self._map_blocks("kv_swap", num_host_blocks) if num_host_blocks else []

    def measure_speeds(self) -> tuple[float, float]:
        """(bytes per second between the pools, tokens per second of prefill), from one short run of each.

        Writes into the first blocks of both pools, which must be free. A prompt of 64 tokens and a few blocks say
        enough to start with; the scheduler corrects both from the steps it sees.
        """
        config = self._config
        assert config.max_model_len is not None
        num_slots = len(self.kv_caches[0][0]) * config.block_size  # with a window fewer than max_model_len, perhaps
        num_tokens = min(64, config.max_num_batched_tokens, config.max_model_len, num_slots)
        blocks = range(min(cdiv(num_tokens, config.block_size), len(self.host_kv_caches[0][0])))
        pairs = [(block_id, block_id) for block_id in blocks]
        prompt = Span(0, 0, [0] * num_tokens, range(cdiv(num_tokens, config.block_size)))
        for _ in range(2):  # the first run meets cold kernels and untouched pages
            result = self.execute(StepPlan([prompt], blocks_to_swap_out=pairs))
        size = len(pairs) * block_bytes(self._model_config, config.block_size, config.kv_dtype)
        return size / max(result.swap_s, 1e-9), num_tokens / max(result.compute_s, 1e-9)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Move and copy blocks, run the model over the spans, draw tokens. Blocking."""
        started = time.perf_counter()
        if plan.blocks_to_swap_out:
            self._ops.swap_blocks(self.kv_caches, self.host_kv_caches, plan.blocks_to_swap_out)
        if plan.blocks_to_swap_in:
            self._ops.swap_blocks(self.host_kv_caches, self.kv_caches, plan.blocks_to_swap_in)
        swapped = time.perf_counter()
        if plan.blocks_to_copy:
            self._ops.copy_blocks(self.kv_caches, plan.blocks_to_copy)
        tokens, prompt_logprobs = self._run(plan) if plan.spans else ([], {})
        return StepResult(tokens, prompt_logprobs, swapped - started, time.perf_counter() - swapped)

    def _run(self, plan: StepPlan) -> tuple[list[DrawnToken], dict[int, list[TokenLogprobs]]]:
        """The model over all spans, and the draws."""
        batch = self._batches.build(plan)
        attention = self._ops.prepare_attention(batch.layout)
        hidden = self.model(batch.token_ids, batch.positions, self.kv_caches, attention, self._ops)  # [T, H]
        prompt_logprobs = {}
        for first_row, span in batch.prompt_spans:
            rows = hidden[first_row : first_row + len(span.prompt_targets)]
            prompt_logprobs[span.seq_id] = self._prompt_logprobs(rows, span.prompt_targets, span.num_prompt_logprobs)
        if not batch.draws:
            return [], prompt_logprobs
        logits = self.model.compute_logits(hidden[batch.drawn_rows], self._ops)  # [R, V]
        if batch.draw_index is not None:
            logits = logits[batch.draw_index]
        return self._sampler.sample(logits, batch.draws), prompt_logprobs

    def close(self) -> None:
        """Give all memory back. Idempotent."""
        self.kv_caches, self.host_kv_caches = [], []
        for arena in self.arenas:
            arena.close()
        self.arenas = []

    def _prompt_logprobs(self, hidden: torch.Tensor, targets: list[int], num_logprobs: int) -> list[TokenLogprobs]:
        found: list[TokenLogprobs] = []
        for start in range(0, len(targets), PROMPT_LOGPROB_ROWS):
            part = slice(start, start + PROMPT_LOGPROB_ROWS)
            logits = self.model.compute_logits(hidden[part], self._ops)
            found += self._sampler.prompt_logprobs(logits, targets[part], num_logprobs)
        return found

    def _map_blocks(self, tag: str, num_blocks: int) -> list[KVCache]:
        """A pool of blocks in an arena of its own."""
        model, config = self._model_config, self._config
        size = num_blocks * block_bytes(model, config.block_size, config.kv_dtype)
        # Room for the alignment of each layer's two tensors.
        arena = self._new_arena(tag, size + 2 * ALIGNMENT * model.num_hidden_layers)
        is_int8 = config.kv_dtype == "int8"
        row_len = model.head_dim + (SCALE_BYTES if is_int8 else 0)
        shape = (num_blocks, config.block_size, model.num_key_value_heads, row_len)
        dtype = torch.int8 if is_int8 else self._dtype
        logger.info("%s: %d blocks of %d tokens, %s", tag, num_blocks, config.block_size, format_bytes(size))
        return [(arena.empty(shape, dtype), arena.empty(shape, dtype)) for _ in range(model.num_hidden_layers)]

    def _new_arena(self, tag: str, capacity_bytes: int) -> HostArena:
        arena = HostArena(tag, capacity_bytes)
        self.arenas.append(arena)
        return arena
