"""Writes MXFP4, as gpt-oss's checkpoints hold it, without lullm."""

import torch

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
EXPERT_MATRICES = ("gate_up_proj", "down_proj")


def quantize(weights):
    """(blocks `[N, out, G, 16]`, scales `[N, out, G]`), both uint8, of `weights [N, in, out]`."""
    groups = weights.mT.float().unflatten(-1, (-1, 32))  # [N, out, G, 32]
    exponents = groups.abs().amax(-1).clamp(min=2.0**-100).log2().floor() - 2
    scaled = groups / 2 ** exponents.unsqueeze(-1)
    digits = (scaled.abs().unsqueeze(-1) - VALUES).abs().argmin(-1) + 8 * (scaled < 0)
    blocks = digits[..., ::2] | digits[..., 1::2] << 4
    return blocks.to(torch.uint8), (exponents + 127).to(torch.uint8)


def encode_experts(tensors):
    """A gpt-oss checkpoint's tensors, with the experts' matrices in MXFP4."""
    encoded = {}
    for name, tensor in tensors.items():
        if name.endswith(EXPERT_MATRICES):
            encoded[f"{name}_blocks"], encoded[f"{name}_scales"] = quantize(tensor)
        else:
            encoded[name] = tensor
    return encoded
