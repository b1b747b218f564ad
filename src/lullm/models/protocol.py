"""Model: the worker's interface of a model of any family, built in any way."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.nn.context import StepContext
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.table import Ops
from lullm.types.vision.tile import Tile
from lullm.weights.rows.cut import Cut
from lullm.weights.rule import WeightRules, on_stage, with_dense

TileReader = Callable[[Tile, torch.device, Ops], Tensor]
"""(tile, device, ops) -> its rows `[1 + K, R, H]`, see `ShownRows`."""


class Model(nn.Module):
    """A module whose parameters are on the meta device until `weights.materialize` gives them memory.

    All calls are made under `torch.inference_mode()`.

    Args:
        config: its `layer_kinds` are the states that each layer keeps between steps.
        rules: from a checkpoint's names to parameters.

    Attributes:
        reads_shown: the model puts rows in place of embeddings (`StepContext.shown`).
        has_stages: the model has only the layers of `config.layers`; if False, it cannot be divided into stages.
        cuts: a worker's parts of parameters, if it shares matrices with others.
        has_pooling_heads: `pool` implements the heads of a `PoolerConfig`; if False, it returns hidden states only.
        pools_means: where the mean of a text's rows is wanted, `pool` computes its numbers from that mean, and one step
            computes all rows of a text; if False, the mean of its numbers is wanted.
        update_weights: see `WeightStore.update`; None: there is no memory for weights yet.
        vision: what reads tiles of pictures (`models.vision.add_vision`); None: nothing, or another stage has it.
        hearing: what reads those of sounds (`models.encoder.hearing.add_hearing`); None: as `vision`.
    """

    reads_shown = False
    has_stages = False
    has_pooling_heads = False
    pools_means = False

    def __init__(self, config: ModelConfig, rules: WeightRules):
        super().__init__()
        if config.stage.num_layers and not self.has_stages:
            raise ModelLoadError(
                f"{config.architecture} cannot be cut into the stages of a pipeline; leave pipeline_parallel_size out"
            )
        if config.pooler is not None and config.pooler.head is not None and not self.has_pooling_heads:
            raise ModelLoadError(
                f"{config.architecture} gives embeddings only, not scores, classes or what Dense modules make of "
                "them; use convert='embed', in a folder without such modules"
            )
        self.config = config
        self.rules = on_stage(with_dense(rules), config.stage)
        self.cuts: Mapping[str, Cut] = {}
        self.update_weights: Callable[[Iterable[tuple[str, Tensor]]], list[str]] | None = None
        self.vision: nn.Module | None = None
        self.hearing: nn.Module | None = None

    @property
    def tile_reader(self) -> TileReader | None:
        """What reads tiles; None: nothing."""
        sees, hears = self.vision, self.hearing
        if sees is None or hears is None:
            return hears if sees is None else sees
        return lambda tile, device, ops: (hears if tile.holds_features else sees)(tile, device, ops)

    def write_encoder(self, rows: Tensor, slots: Tensor, caches: Sequence[LayerCache], ops: Ops) -> None:
        """Write the keys and values of an encoder's `rows [P, H]` into `slots [P]` of every layer's cache.

        Only of models with `config.encoder`.
        """
        raise NotImplementedError(f"{self.config.architecture} has no encoder")

    @abstractmethod
    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        """The hidden states `[T, H]` of one step's token ids `[T]` int64.

        Keys and values are written into the caches of the context. On a stage of a pipeline that is not the last
        (`config.stage`): the residual stream `[T, H]` for the next one.
        """

    @abstractmethod
    def compute_logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """Logits `[N, V]` float32 of the rows `hidden [N, H]` for sampling."""

    def pool(self, hidden: Tensor, ops: Ops) -> Tensor:
        """The pooled numbers of the rows `hidden [N, H]` for `config.pooler`: `[N, K]` float32, before any activation.

        These are hidden states, or numbers of a head: one per label, or one score. Hidden states are transformers'
            `last_hidden_state`.
        """
        return hidden.float()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Replace some weights, under the checkpoint's names. Returns the replaced names. See `WeightStore.update`."""
        if self.update_weights is None:
            raise ModelLoadError("the model has no memory for weights yet")
        return set(self.update_weights(weights))
