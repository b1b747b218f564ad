"""The draft model of an engine: found, read and checked, before any weights are loaded. Loads no torch."""

from dataclasses import replace

from lullm.config.agreement.speculation import check_draft
from lullm.config.engine import EngineConfig
from lullm.config.gguf.mmproj.finding import NONE
from lullm.config.model import ModelConfig
from lullm.config.resolved import DraftModel, ResolvedConfig
from lullm.errors import ConfigError, ModelLoadError
from lullm.models.fallback.choice import read_model_config
from lullm.text.tokenizer import Tokenizer
from lullm.weights.folder import resolve_model


def with_draft(config: EngineConfig, resolved: ResolvedConfig, model: ModelConfig) -> ResolvedConfig:
    """The config with the draft model that `speculative_config` names, if it does. Blocking, as `resolve_model` is.

    Raises:
        ModelLoadError: it cannot be read.
        ConfigError, UnsupportedError: it does not fit the model.
    """
    speculation = resolved.speculative_config
    if speculation is None or speculation.method != "draft_model":
        return resolved
    try:
        folder = resolve_model(speculation.model, speculation.revision, fetches_tower=False)
        draft = replace(read_model_config(folder, "lullm", mmproj=NONE), vision=None)  # it sees tokens for pictures
    except ModelLoadError as error:
        raise ModelLoadError(f"speculative_config: the draft model: {error}") from None
    check_draft(config, model, draft, speculation.model)
    longest = speculation.max_model_len or draft.longest_len
    if longest > draft.longest_len:
        raise ConfigError(
            f"speculative_config: max_model_len ({longest}) is above the draft model's {draft.longest_len} positions; "
            "lower it or leave it out"
        )
    return replace(resolved, draft=DraftModel(folder=folder, model=draft, max_model_len=longest))


def check_tokens(config: ResolvedConfig, tokenizer: Tokenizer) -> None:
    """Check that a draft model's tokens are those of `tokenizer`; without a tokenizer of its own they are.

    Raises:
        ConfigError: they differ.
    """
    draft = config.draft
    if draft is None:
        return
    try:
        own = Tokenizer.from_folder(draft.folder)
    except ModelLoadError:
        return
    vocab, others = own.get_vocab(), tokenizer.get_vocab()
    num_differing = sum(others.get(token) != number for token, number in vocab.items())
    if num_differing:
        raise ConfigError(
            f"speculative_config: the draft model's tokenizer is another one: {num_differing} of its {len(vocab)} "
            f"tokens have another id, or none, among the model's {len(others)}; take a smaller model of the same family"
        )
