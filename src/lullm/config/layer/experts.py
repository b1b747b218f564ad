"""ExpertsConfig: a mixture of experts in place of the MLP, in some layers or all (https://arxiv.org/abs/2101.03961)."""

from dataclasses import dataclass
from typing import Literal

Scoring = Literal["softmax", "sigmoid", "sparsemixer"]
"""The function from a router's products to scores: over all experts together, each by itself, or among those near the
best.
"""


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """`(up + 1) * gate * sigmoid(alpha * gate)`, gates at most `limit`, ups within `limit` on both sides (gpt-oss)."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The experts, and the rules of the router's choice.

    Args:
        num_experts: of a layer. num_used: experts per token.
        intermediate_size: of one expert.
        layers: by layer, whether it has experts; the others have an MLP.
        scoring: see `Scoring`.
        normalizes: the scores of the chosen experts are divided by their sum.
        scale: factor on the scores.
        num_groups, num_used_groups: experts form groups of equal size, and are chosen from the best groups.
        num_group_scores: a group's rank is the sum of this many of its best scores.
        has_correction: a bias per expert is added to its score for the choice, not for the result
            (https://arxiv.org/abs/2408.15664).
        has_factors: the shares of each expert are multiplied by a learned factor of its own.
        shared_intermediate_size: of an expert that every token uses; None: no such expert.
        shared_scale: factor on the shared expert's result; it is folded into its weights.
        shared_is_gated: the shared expert's result is multiplied by the sigmoid of a product of its own.
        has_biases: the router and the matrices of the experts have a bias.
        is_gated: experts, and the shared one, are gated MLPs; if False, MLPs of one activation.
        latent_size: of the experts' inputs and results, between two projections; None: these are hidden states.
        has_shared_biases: the shared expert has biases.
        nearness: with "sparsemixer", a product counts if it is at most this share of its size below the best.
        scales_inputs: the shares multiply the experts' inputs, not their results.
        clamped_gate: replaces the family's activation in the experts.
        own: the numbers of the experts that this worker has; None: all.
    """

    num_experts: int
    num_used: int
    intermediate_size: int
    layers: tuple[bool, ...]
    scoring: Scoring = "softmax"
    normalizes: bool = True
    scale: float = 1.0
    num_groups: int = 1
    num_used_groups: int = 1
    num_group_scores: int = 2
    has_correction: bool = False
    has_factors: bool = False
    shared_intermediate_size: int | None = None
    shared_scale: float = 1.0
    shared_is_gated: bool = False
    has_biases: bool = False
    is_gated: bool = True
    latent_size: int | None = None
    has_shared_biases: bool = False
    nearness: float = 0.0
    scales_inputs: bool = False
    clamped_gate: ClampedGate | None = None
    own: range | None = None

    @property
    def beside_ops(self) -> str:
        """As `ModelConfig.beside_ops`."""
        if self.scoring == "sparsemixer":
            return "chooses experts by torch"
        return "scales what experts read" if self.scales_inputs else ""
