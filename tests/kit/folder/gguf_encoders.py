"""GGUF files of encoders' folders, by the conventions of llama.cpp's converter."""

import json

import gguf
from gguf import MODEL_ARCH, PoolingType, TokenType
from kit.folder.gguf_files import FORMATS, add_values, as_tensor
from safetensors.torch import load_file
from tokenizers import Tokenizer as Backend

ARCHITECTURES = {
    "Bert": MODEL_ARCH.BERT, "XLMRoberta": MODEL_ARCH.BERT, "Roberta": MODEL_ARCH.BERT, "DistilBert": MODEL_ARCH.BERT,
    "NomicBert": MODEL_ARCH.NOMIC_BERT, "ModernBert": MODEL_ARCH.MODERN_BERT, "Gemma3Text": MODEL_ARCH.GEMMA_EMBEDDING,
    "Qwen3": MODEL_ARCH.QWEN3, "Qwen2": MODEL_ARCH.QWEN2,
}  # fmt: skip
DROPPED = ("pooler.", "cls.", "lm_head.", "decoder.", "embeddings.position_ids", "vocab_")
PREFIXES = ("bert.", "roberta.", "distilbert.", "model.", "nomic_bert.")
OF_NOMIC = (
    (".self_attn.qkv_proj.", ".attn.Wqkv."), (".self_attn.o_proj.", ".attn.out_proj."),
    (".attention.qkv_proj.", ".attn.Wqkv."), (".attention.o_proj.", ".attn.out_proj."),
    (".post_attention_layernorm.", ".norm1."), (".post_mlp_layernorm.", ".norm2."), (".mlp.up_proj.", ".mlp.fc11."),
    (".mlp.gate_proj.", ".mlp.fc12."), (".mlp.down_proj.", ".mlp.fc2."), ("embeddings.LayerNorm", "emb_ln"),
)  # fmt: skip
KINDS = {"mean_tokens": PoolingType.MEAN, "cls_token": PoolingType.CLS, "lasttoken": PoolingType.LAST}
RANK = 4


def write_encoder_gguf(path, folder, block=FORMATS.F32, pooling=None, skip=(), keys=(), decoded=None):
    """The encoder of a folder, or an embedding model of another family.

    Args:
        pooling: a number, the value of `pooling_type`; None: there is no such key.
        skip: names of tensors that are left out.
        keys: (method of the writer, value).
        decoded: a file whose numbers are written, in place of the folder's.
    """
    config = json.loads((folder / "config.json").read_text())
    name = config["architectures"][0]
    family = next(f for f in sorted(ARCHITECTURES, key=len, reverse=True) if name.startswith(f))
    arch = ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    offset = config["pad_token_id"] + 1 if family in ("XLMRoberta", "Roberta") else 0
    add_config(writer, config, family, offset)
    for method, value in keys:
        getattr(writer, method)(value)
    if pooling is not None:
        writer.add_pooling_type(PoolingType(pooling))
    if (folder / "tokenizer.json").exists():
        add_word_pieces(writer, folder)
    for key, values in tensors_of(folder, config, family, arch, offset).items():
        if key not in skip:
            is_matrix = values.ndim > 1 and key not in ("position_embd.weight", "token_types.weight")
            values = values if decoded is None else as_tensor(decoded, key).numpy()
            add_values(writer, key, values, block if is_matrix else FORMATS.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def one_of(config, *names):
    return next(config[name] for name in names if config.get(name) is not None)


def add_config(writer, config, family, offset):
    writer.add_context_length(config["max_position_embeddings"] - offset)
    writer.add_embedding_length(one_of(config, "hidden_size", "dim"))
    writer.add_block_count(one_of(config, "num_hidden_layers", "n_layers"))
    writer.add_feed_forward_length(one_of(config, "intermediate_size", "hidden_dim"))
    writer.add_head_count(one_of(config, "num_attention_heads", "n_heads"))
    if config.get("num_key_value_heads"):
        writer.add_head_count_kv(config["num_key_value_heads"])
    if config.get("rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(next((config[key] for key in ("layer_norm_eps", "norm_eps") if key in config), 1e-12))
    if family not in ("Qwen3", "Qwen2") or config.get("is_causal") is False:
        writer.add_causal_attention(False)
    rope = config.get("rope_parameters") or {}
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"])
    elif rope:
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if family == "ModernBert":
        writer.add_sliding_window(config["local_attention"])
        writer.add_string("modern-bert.hidden_activation", config["hidden_activation"])
        if config.get("classifier_pooling"):
            mode = {"cls": PoolingType.CLS, "mean": PoolingType.MEAN}[config["classifier_pooling"]]
            writer.add_uint32("modern-bert.classifier.pooling_type", mode)
    if family == "Gemma3Text":
        writer.add_sliding_window(config["sliding_window"])


def tensors_of(folder, config, family, arch, offset):
    names = gguf.get_tensor_name_map(arch, one_of(config, "num_hidden_layers", "n_layers"))
    found = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for prefix in PREFIXES:
            if name.startswith(prefix) and family not in ("Qwen3", "Qwen2"):
                name = name.removeprefix(prefix)
                break
        if name.startswith(DROPPED):
            continue
        values = tensor.float().numpy()
        for old, new in OF_NOMIC if family == "NomicBert" else ():
            name = f"encoder.{name}" if name.startswith("layers.") else name
            name = name.replace(old, new)
        if name == "embeddings.position_embeddings.weight":
            values = values[offset:]
        if family == "Gemma3Text" and name.endswith("norm.weight"):
            values = values + 1
        if name in ("classifier.weight", "classifier.bias"):
            name = name.replace("classifier.", "classifier.out_proj.")
        known = NEW_NAMES.get(name) or names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert known, name
        found[known] = values
    for number in (2, 3):
        dense = folder / f"{number}_Dense" / "model.safetensors"
        if dense.exists():
            found[f"dense_{number}.weight"] = load_file(dense)["linear.weight"].numpy()
    return found


NEW_NAMES = {
    "score.weight": "cls.output.weight",
    "head.dense.weight": "cls.weight",
    "head.dense.bias": "cls.bias",
    "head.norm.weight": "cls.norm.weight",
}
"""Of a converter that is newer than the library, and of a reranker's rows of 'yes' and 'no'."""


def add_word_pieces(writer, folder, **more):
    """A tokenizer.json of WordPiece, with marks at beginnings of words."""
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    added = backend.get_added_tokens_decoder()
    tokens, kinds = [], []
    for number in range(backend.get_vocab_size()):
        token = backend.id_to_token(number)
        is_special = number in added and added[number].special
        kinds.append(TokenType.CONTROL if is_special else TokenType.NORMAL)
        tokens.append(token if is_special else token[2:] if token.startswith("##") else f"▁{token}")
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_type_count(2)
    for role, add in (("[CLS]", writer.add_bos_token_id), ("[SEP]", writer.add_sep_token_id),
                      ("[UNK]", writer.add_unk_token_id), ("[PAD]", writer.add_pad_token_id),
                      ("[MASK]", writer.add_mask_token_id)):  # fmt: skip
        if (number := backend.token_to_id(role)) is not None:
            add(number)
    for name, value in more.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
