"""WorkerSetup: the configuration, device, ops and threads of all parts of a worker."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from lullm.arena.workspace import Workspace
from lullm.collective.seat import Seat
from lullm.config.model import ModelConfig
from lullm.config.parallel.cut import on_stage
from lullm.config.parallel.share import share_of
from lullm.config.resolved import ResolvedConfig
from lullm.device.choice import open_device
from lullm.device.device import TORCH_DTYPES, Device
from lullm.kv.cache_group import CacheGroup, CacheLayout, LayerPlace
from lullm.kv.layout import cache_layout_of
from lullm.machine.memory_ahead import MemoryAhead
from lullm.models.protocol import Model
from lullm.nn.kv_scale import with_scales
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.selection import require_batch_invariance, select_ops, with_collective, with_features
from lullm.ops.table import Ops
from lullm.ops.threads import StepThreads
from lullm.sampling.draw_share import DrawShare
from lullm.sampling.masks import MaskMaker
from lullm.sampling.sampler import Sampler
from lullm.step.block_move import CachePools
from lullm.step.limits import StepLimits
from lullm.step.relay import Relay
from lullm.step.runner import AdapterPlaces, Computing, Drawing, ModelRunner, StepMemory
from lullm.text.tokenizer import Tokenizer
from lullm.weights.folder import resolve_model


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """Both configurations are resolved. `seat`: the worker's place among those that share the model.

    `model_config` has the sizes of the worker's share.
    """

    config: ResolvedConfig
    model_config: ModelConfig
    device: Device
    ops: Ops
    threads: StepThreads
    seat: Seat

    @property
    def whole_config(self) -> ModelConfig:
        """The configuration of the whole model."""
        share = self.model_config.share
        return self.model_config if share is None else share.whole

    def fitted(self, max_model_len: int) -> "WorkerSetup":
        """The same setup for sequences of at most `max_model_len` tokens."""
        return replace(self, config=replace(self.config, max_model_len=max_model_len))

    def of_draft(self) -> "WorkerSetup | None":
        """The setup of the draft model, on the same device and among the same workers; None: there is none."""
        draft, tensor = self.config.draft, self.seat.placement.tensor
        if draft is None:
            return None
        config, part = self.config.of_draft, share_of(draft.model, tensor)
        return replace(self, config=config, model_config=part, ops=_ops(config, part, self.seat))

    @property
    def dtype(self) -> torch.dtype:
        """The type of activations and of weights that are not quantized."""
        return TORCH_DTYPES[self.config.dtype]

    @property
    def records_graphs(self) -> bool:
        """Whether decodes are recorded once and replayed. A model that only pools has no decodes."""
        model = self.model_config
        is_recordable = self.ops.is_recordable and model.generates and model.foreign is None
        return is_recordable and not self.config.enforce_eager

    def new_model_runner(
        self,
        model: Model,
        kv_caches: list[LayerCache],
        host_kv_caches: list[LayerCache],
        workspace: Workspace | None = None,
        adapters: AdapterPlaces | None = None,
    ) -> ModelRunner:
        """A runner of steps over these pools, given by the layer-slots of a block."""
        config, model_config, ops = self.config, self.model_config, self.ops
        layout = cache_layout_of(model_config, config.block_size, config.kv_dtype)
        of_layers = _caches_of_layers(kv_caches, layout, model_config)
        of_layers = with_scales(of_layers, model, model_config.layer_kinds, model_config.own_kinds)
        rows = config.max_num_batched_tokens, model_config.stream_size
        return ModelRunner(
            Computing(self.device, ops, self.threads.scope),
            model,
            StepMemory(of_layers, CachePools(kv_caches, host_kv_caches), workspace, adapters),
            Drawing(
                Sampler(model_config.vocab_size, config.logprobs_mode, ops.draw_tokens, ops.forbid_, ops.draw_allowed),
                MaskMaker(self._tokenizer_json, model_config.vocab_size),
                DrawShare(self.seat.tensor),
            ),
            self._step_limits(layout.groups, has_adapters=adapters is not None),
            Relay(self.seat.pipeline, model_config.stage, rows, self.dtype, self.device.torch_device),
        )

    def _step_limits(self, groups: Sequence[CacheGroup], has_adapters: bool) -> StepLimits:
        config, model = self.config, self.model_config
        if model.encoder is not None:  # its rows are a group of their own in a step (`step.encoder.split`)
            assert len(groups) == 1, "all layers attend to all tokens"
            groups = (*groups, *groups)
        return StepLimits(
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.max_model_len,
            config.block_size,
            windows=tuple(group.window for group in groups),
            chunked_groups=tuple(number for number, group in enumerate(groups) if group.is_chunked),
            num_state_blocks=tuple(group.num_state_blocks for group in groups),
            num_shares=tuple(group.num_shares for group in groups),
            max_in_flight=config.max_in_flight,
            feeds_back=config.feeds_back,
            has_adapters=has_adapters,
            tells_pairs=model.family.encoder_only is not None and model.family.encoder_only.tells_pairs,
            has_planes=model.vision is not None and bool(model.vision.axes),
            sees_in_windows=model.vision is not None and model.vision.in_windows,
            max_encoder_rows=0 if model.encoder is None else model.encoder.max_rows,
        )

    def _tokenizer_json(self) -> str:
        """The text of the tokenizer, for grammars. It is read at the first request with a grammar."""
        config = self.config
        folder = resolve_model(config.tokenizer) if config.tokenizer else resolve_model(config.model, config.revision)
        return Tokenizer.from_folder(folder).backend.to_str()


def _caches_of_layers(kv_caches: list[LayerCache], layout: CacheLayout, model: ModelConfig) -> list[LayerCache]:
    """By layer, its share of the cache of its slot; of a layer that keeps nothing, any cache."""

    def of_layer(layer: int, place: LayerPlace) -> LayerCache:
        num_shares = layout.groups[place.group].num_shares
        return kv_caches[place.slot].share(place.share, num_shares, model.kv_heads(layer).num_heads)

    places = layout.places if kv_caches else ()
    return [kv_caches[0] if place is None else of_layer(layer, place) for layer, place in enumerate(places)]


def open_setup(
    config: ResolvedConfig, model_config: ModelConfig, ahead: MemoryAhead | None = None, seat: Seat | None = None
) -> WorkerSetup:
    """Open the device that the config names. Raises UnsupportedError: the device, or ops for it, are missing."""
    seat = seat or Seat()
    place, is_by_experts = seat.placement, config.enable_expert_parallel
    model_config = share_of(on_stage(model_config, config, place.pipeline.rank), place.tensor, is_by_experts)
    device = open_device(config.device, ahead)
    ops = _ops(config, model_config, seat)
    return WorkerSetup(config, model_config, device, ops, StepThreads(config.threads), seat)


def _ops(config: ResolvedConfig, model_config: ModelConfig, seat: Seat) -> Ops:
    """The ops of a model. Raises UnsupportedError: they are missing."""
    ops = select_ops(config.device, config.attention_backend, config.batch_invariant)
    ops = with_features(ops, model_config.family.attention_features)
    if config.batch_invariant:
        has_states = model_config.family.recurrent is not None
        for head_dim in model_config.head_dims:
            require_batch_invariance(ops, config.dtype, config.kv_dtype, head_dim, has_states)
    return with_collective(ops, seat.tensor)
