"""The quantization of a checkpoint's matrices: `quantization_config` of `config.json`, by method."""
