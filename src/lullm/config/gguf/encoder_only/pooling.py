"""What a GGUF file says of a model's vectors and scores: `pooling_type`, layers behind the pooling, a reranker's rows.

As llama.cpp's server and Ollama do, vectors are normalized.
"""

from lullm.config.field import Data
from lullm.config.gguf.encoder_only.architecture import ENCODERS, LABELS
from lullm.config.gguf.file import GGUFFile
from lullm.config.gguf.keys import Keys
from lullm.config.pooling.pooler import Classifier, DenseLayer, DenseLayers, PoolerConfig
from lullm.log import get_logger
from lullm.types.pooling.params import PoolingKind

logger = get_logger(__name__)

_NONE, _RANK = 0, 4
_KINDS: dict[int, PoolingKind] = {1: "mean", 2: "cls", 3: "last"}
_RERANKERS = {"qwen3": "Qwen3ForSequenceClassification"}
"""Decoders whose files hold two rows of the head, of 'yes' and 'no', in place of labels."""
_DENSE = ("dense_2", "dense_3")


def pooler_of(file: GGUFFile) -> PoolerConfig | None:
    """The file's own pooling; None: it says none, or it has an encoder's labels. Raises ModelLoadError."""
    return read_pooler(Keys(file))


def read_pooler(keys: Keys) -> PoolerConfig | None:
    """As `pooler_of`."""
    stated, architecture = keys.get("pooling_type", _NONE), keys.file.architecture
    if stated == _NONE or stated == _RANK and architecture in ENCODERS and keys.has(LABELS):
        return None
    if stated == _RANK and _has_answers(keys):
        return PoolerConfig("classify", "last", "sigmoid", Classifier(1), pair_form="qwen3_reranker")
    if not isinstance(stated, int) or stated not in _KINDS:
        raise keys.fault(
            f"pooling_type {stated!r:.40} is not supported for this {architecture} file, only 1 (mean), 2 (cls), 3 "
            f"(last), and 4 (rank) of an encoder with the tensor {LABELS} or of a Qwen3-Reranker; take the folder with "
            "the model's safetensors"
        )
    return PoolerConfig("embed", _KINDS[stated], "normalize", _dense(keys))


def of_labels(keys: Keys) -> Data:
    """For a reranker, the architecture with one label, whose row is that of 'yes' less that of 'no'."""
    if keys.get("pooling_type") != _RANK or not _has_answers(keys):
        return {}
    return {"architectures": [_RERANKERS[keys.file.architecture]], "num_labels": 1}


def _has_answers(keys: Keys) -> bool:
    labels = keys.file.tensors.get(LABELS)
    named = keys.get("classifier.output_labels")
    is_pair = labels is not None and len(labels.shape) == 2 and labels.shape[0] == 2
    return keys.file.architecture in _RERANKERS and is_pair and named in (None, ["yes", "no"])


def _dense(keys: Keys) -> DenseLayers | None:
    """EmbeddingGemma's matrices behind the mean, under the names of their folders."""
    if keys.file.architecture != "gemma-embedding":
        return None
    shapes = {name: keys.file.tensors[f"{name}.weight"].shape for name in _DENSE if keys.has(f"{name}.weight")}
    if not shapes:
        logger.warning(
            "%s has no layers behind the pooling (dense_2, dense_3): vectors differ from those of the model's folder, "
            "and are llama.cpp's; a file written with --sentence-transformers-dense-modules has them",
            keys.file.path,
        )
        return None
    if any(len(shape) != 2 for shape in shapes.values()):
        raise keys.fault("dense_2 and dense_3 must be matrices; fetch the file again")
    return DenseLayers(tuple(
        DenseLayer(f"{name[-1]}_Dense", shape[1], shape[0], False, None) for name, shape in shapes.items()
    ))  # fmt: skip
