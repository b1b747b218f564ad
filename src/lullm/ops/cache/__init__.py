"""The KV cache of one layer, and its two formats of 8 bits; `reading`: what is in it, in float32."""
