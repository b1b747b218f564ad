"""Tiny random encoders with a tokenizer of BERT's form, as people download them."""

import json

import torch
from kit.folder.checkpoint import TEXT

SIZES = {
    "vocab_size": 140, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 72,
    "max_position_embeddings": 130, "pad_token_id": 1,
}  # fmt: skip
SEPARATOR = 3


def write_bert_tokenizer(folder):
    """WordPiece with [CLS] and [SEP] around a text, and around a pair."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=130, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", SEPARATOR)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def random_encoder(architecture, **options):
    """A random model of transformers, with activations large enough for mistakes to show."""
    import transformers

    cls = getattr(transformers, architecture)
    sizes = {"bos_token_id": None, "eos_token_id": None, "cls_token_id": None, "sep_token_id": None} | SIZES
    model = cls(cls.config_class(**sizes | options)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            parameter.normal_(1.0 if is_scale else 0.0, 0.2, generator=generator)
    return model


def write_encoder(folder, architecture, **options):
    """Such a model and its folder."""
    model = random_encoder(architecture, **options)
    model.save_pretrained(folder)
    write_bert_tokenizer(folder)
    return model
