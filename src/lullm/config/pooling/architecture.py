"""Architectures of checkpoints without a head for next tokens: with a matrix of labels, or with nothing at all."""

from typing import Any, Literal, NamedTuple

from lullm.config.field import positive_int

_FAMILIES = frozenset(
    {"Gemma2", "Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "SmolLM3"}
)
"""Families over the shared decoder for which transformers has `...ForSequenceClassification` and
`...ForTokenClassification`.
"""


ENCODERS = frozenset(
    {
        "Albert", "Bert", "Camembert", "DebertaV2", "DistilBert", "Electra", "Gte", "MPNet", "ModernBert", "New",
        "NomicBert", "Roberta", "XLMRoberta",
    }
)  # fmt: skip
"""Families that give no next tokens. What their heads of training fill in (`...ForMaskedLM`) is not loaded."""

_WITHOUT_HEADS = {"Gemma3TextModel": "Gemma3ForCausalLM"}
"""Decoders for embeddings alone, whose names are not those of their families."""
_WITHOUT_LABELS = frozenset({"LlamaBidirectionalModel"})
"""Encoders by their whole names: theirs with labels are others'."""

_OLDER_NAMES = {
    "AquilaModel": "AquilaForCausalLM",
    "BaiChuanForCausalLM": "BaichuanForCausalLM",
    "ChatGLMModel": "ChatGLMForConditionalGeneration",
    "LLaMAForCausalLM": "LlamaForCausalLM",
    "MPTForCausalLM": "MptForCausalLM",
    "PhiMoEForCausalLM": "PhimoeForCausalLM",
}
"""Other names in checkpoints, most of them older than transformers' class."""


LabelForm = Literal["sequence", "token", "reward", "process_reward"]
"""What stands in place of the head for next tokens: labels of a text, labels of each token, a score of a text, or the
probabilities of a solution's steps.
"""

_SUFFIXES: dict[str, LabelForm | None] = {
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "Model": None,
}
_REWARD_MODELS: dict[str, LabelForm] = {"Qwen2ForRewardModel": "reward", "Qwen2ForProcessRewardModel": "process_reward"}
"""The reward models of Qwen2.5-Math (https://arxiv.org/abs/2409.12122, https://arxiv.org/abs/2501.07301)."""


class Labels(NamedTuple):
    """The outputs in place of next tokens. `num`: of them. `names`: of each, in order; empty: they have none."""

    form: LabelForm
    num: int
    names: tuple[str, ...] = ()


class Architecture(NamedTuple):
    """`base`: the same architecture with a head for next tokens; its family reads and builds the rest."""

    base: str
    has_lm_head: bool = True
    labels: LabelForm | None = None


def split_architecture(name: str) -> Architecture:
    """The parts after the layers of an architecture in `config.json`. An encoder's `base` is its `...Model`."""
    if name in _WITHOUT_LABELS:
        return Architecture(name, False)
    if (base := _WITHOUT_HEADS.get(name)) is not None:
        return Architecture(base, False)
    for suffix, labels in (*_SUFFIXES.items(), ("ForMaskedLM", None)):
        family = name.removesuffix(suffix)
        if family != name and family in ENCODERS:
            return Architecture(f"{family}Model", False, labels)
    if (form := _REWARD_MODELS.get(name)) is not None:
        return Architecture("Qwen2ForCausalLM", False, form)
    for suffix, labels in _SUFFIXES.items():
        family = name.removesuffix(suffix)
        if family != name and family in _FAMILIES:
            return Architecture(f"{family}ForCausalLM", False, labels)
    return Architecture(_OLDER_NAMES.get(name, name))


_MOST_LABELS = 1 << 16


def read_labels(data: dict[str, Any], form: LabelForm) -> Labels:
    """The labels of a parsed `config.json`, as transformers counts them: 2 if the file has none.

    A label without a name is LABEL_ and its number, as there. A reward model has a number of its own, whatever the file
    says. Raises ModelLoadError: it is no number.
    """
    if form in ("reward", "process_reward"):
        return Labels(form, 1 if form == "reward" else 2)
    given = data.get("id2label")
    names = given if isinstance(given, dict) else {}
    num = positive_int(data, "num_labels", len(names) or 2, _MOST_LABELS)
    named = [names.get(str(index), names.get(index)) for index in range(num)]
    return Labels(form, num, tuple(n if isinstance(n, str) else f"LABEL_{i}" for i, n in enumerate(named)))
