"""Model: what the worker needs from a model of any family. A family file may build it in any way it likes."""

from typing import Protocol

from torch import Tensor

from lullm.config.model import ModelConfig
from lullm.nn.context import StepContext
from lullm.ops.table import Ops
from lullm.weights.rule import WeightRules


class Model(Protocol):
    """A torch module with parameters on the meta device until `weights.materialize` gives them memory.

    `config.layer_kinds` say what each layer keeps between steps. `rules` say how a checkpoint's names become
    parameters. All calls are made under `torch.inference_mode()`.
    """

    config: ModelConfig
    rules: WeightRules

    def __call__(self, token_ids: Tensor, context: StepContext) -> Tensor:
        """The hidden states `[T, H]` of one step's token ids `[T]` int64.

        Keys and values are written into the caches of the context.
        """
        ...

    def compute_logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """Logits `[N, V]` float32 of the rows `hidden [N, H]` that are to be sampled from."""
        ...
