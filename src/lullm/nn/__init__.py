"""Layers: parameters (on the meta device until an arena holds them) and the ops that use them. Inference only.

A step reaches all of them as one `context`.

- Matrices: `linear`, `embedding` (and the head), `mlp`, `experts`. `norm`. `altup`: several residual streams.
- Attention: `attention`, `latent_attention`; `rotary` and `alibi` positions; `kv_scale` of an fp8 cache.
- `recurrent/`: mixers that keep a state of fixed size.
"""
