"""How a checkpoint's matrices are quantized: `quantization_config` of `config.json`, by method."""
