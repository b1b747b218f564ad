"""Values of options that are known elsewhere, and refused here with an explanation."""

from lullm.errors import UnsupportedError


def refuse_known_names(device: object, kv_cache_dtype: object, attention_backend: object) -> None:
    """Raises UnsupportedError, with an explanation: a value is known elsewhere and not supported here."""
    if str(device).partition(":")[0] in ("npu", "ascend"):
        raise UnsupportedError(
            f"device={device!r} is not supported: there are arenas for Ascend memory, but neither ops nor a "
            "device for its steps; use device='cpu'"
        )
    if str(kv_cache_dtype) in ("fp8_e5m2", "fp8_inc", "fp8_ds_mla"):
        raise UnsupportedError(f"kv_cache_dtype={kv_cache_dtype!r} is not supported: use fp8_e4m3 ('fp8')")
    if str(attention_backend) in ("flashinfer", "flash-attn"):
        raise UnsupportedError(
            f"attention_backend={attention_backend!r} is not supported yet: use auto, triton or torch"
        )
