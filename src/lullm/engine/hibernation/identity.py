"""Identity: the facts that must be equal in the engine that hibernates and the one that resumes.

They decide what the bytes of a KV block mean, which tokens follow, and when a request ends. All else may differ:
threads, the size of the cache, scheduling.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig

UNTRIED_BACKENDS = ("ray", "external_launcher")
"""Back ends whose workers may be on several machines, and so cannot write to one folder."""
_WEIGHTS = "weights"


def identity_of(
    config: ResolvedConfig, model: ModelConfig, checksums: Iterable[Mapping[str, int]]
) -> dict[str, int | str]:
    """By name. `checksums`: by worker, of all parameters."""
    return {
        "architecture": model.architecture,
        "vocab_size": model.vocab_size,
        "dtype": config.dtype,
        "quantization": config.quantization or "none",
        "kv_cache_dtype": config.kv_dtype,
        "block_size": config.block_size,
        "max_model_len": config.max_model_len,
        "logprobs_mode": config.logprobs_mode,
        "device": config.device,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "pipeline_layers": ",".join(map(str, config.pipeline_layers)),
        "byte order": sys.byteorder,
        **_of_pictures(model),
        _WEIGHTS: fingerprint_of(checksums),
    }


def _of_pictures(model: ModelConfig) -> dict[str, int | str]:
    """The settings by which the bytes of a tile were made; each request says their number and shape."""
    if model.vision is None:
        return {}
    form = model.vision.picture
    return {"numbers of pictures": f"{form.rescale_factor} {form.image_mean} {form.image_std}"}


def fingerprint_of(checksums: Iterable[Mapping[str, int]]) -> str:
    """A digest of the weights of all workers, as their ops read them, whichever worker has which experts."""
    found = sorted({(name, checksum) for of_worker in checksums for name, checksum in of_worker.items()})
    return hashlib.blake2b(repr(found).encode(), digest_size=16).hexdigest()


def difference(there: Mapping[str, int | str], here: Mapping[str, int | str]) -> str | None:
    """What differs, in words; None: nothing. Names are in the order of `here`."""
    names = [name for name in here if there.get(name) != here[name]]
    options = [f"{name} is {here[name]}, and was {there.get(name)}" for name in names if name != _WEIGHTS]
    if options:
        return "; ".join(options)
    return "the weights are others" if names else None
