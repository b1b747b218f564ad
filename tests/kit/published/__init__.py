"""The `config.json` of the most downloaded repositories, key for key, at toy size, beside transformers' own model."""

from kit.published import elder, llama, mistral_gemma, qwen, small

PUBLISHED = {
    name: {key: value for key, value in data.items() if value is not ...}
    for part in (llama, qwen, mistral_gemma, small, elder)
    for name, data in part.PUBLISHED.items()
}
"""By repository. A key with the value `...` is one that a near relative has, and this file has not."""
