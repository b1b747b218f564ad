"""The file beside a GGUF model that reads pictures (llama.cpp's `mmproj`): a tower, and what joins it to the decoder.

`finding`: which file; `kind`: its keys as a config.json, for each `clip.projector_type`; `reading`: both, for a model.
"""
