"""How encoders pool, where their folder does not say it."""

from dataclasses import replace

from lullm.config.decoder import EncoderOnlyConfig
from lullm.config.pooling.pooler import PoolerConfig


def of_encoder(pooler: PoolerConfig, encoder: EncoderOnlyConfig, is_stated: bool) -> PoolerConfig:
    """The pooler of an encoder, whose last token says no more of a text than others.

    As in vLLM an embedding is the first token's hidden state; of decoders without a mask it is the last one's. Pairs
    have the special tokens that the tokenizer puts around them.

    Args:
        is_stated: by the folder's modules.
    """
    if pooler.task == "embed":
        return pooler if is_stated else replace(pooler, kind=encoder.text_kind)
    if pooler.task == "token_classify":
        return pooler
    form = "pair" if pooler.can_score and pooler.pair_form is None else pooler.pair_form
    return replace(pooler, kind=encoder.label_kind, pair_form=form)
