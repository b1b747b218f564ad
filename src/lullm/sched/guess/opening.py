"""Opens the guesser that a config names."""

from lullm.config.resolved import ResolvedConfig
from lullm.kv.block_space import BlockSpaceManager
from lullm.sched.guess.adaptive import AdaptiveGuesses
from lullm.sched.guess.draft_model import ModelGuesses
from lullm.sched.guess.guesser import Guesser
from lullm.sched.guess.ngram import NgramGuesses
from lullm.sched.guess.suffix import SuffixGuesses


def open_guesser(config: ResolvedConfig, block_space: BlockSpaceManager, whole_group: int | None) -> Guesser | None:
    """The guesser of an engine; None: nothing is guessed. `whole_group`: see `CacheLayout`."""
    how, draft = config.speculative_config, config.draft
    if how is None:
        return None
    guesser: Guesser
    if draft is None:
        guesser = NgramGuesses(how) if how.method == "ngram" else SuffixGuesses(how)
    else:
        assert whole_group is not None, "checked with the draft model"
        longest = min(draft.max_model_len, config.max_model_len)
        limits = config.max_num_seqs, config.max_num_batched_tokens, longest
        guesser = ModelGuesses(how, block_space, whole_group, *limits)
    return AdaptiveGuesses(guesser, how.num_speculative_tokens, draft is not None) if how.adaptive else guesser
