"""Configuration of the engine and the model: frozen, checked once, fully resolved before anything is built.

An engine: `engine` holds the user's options, from `engine_option` (options that mean the same for all) and
`user_option` (those that may be left open). `agreement/` refuses options that do not go together. An engine is built
from `resolved`.

A model: `model` and `decoder` are a `config.json`, its common part and the family's own, with its `rope`; `generation`
has a model's own sampling parameters, `alignment` the heads that tell the times of words; `field` and `json_file` read
files with bounds.

- `option/`: an option is declared once, for flags, docs and checks; and vLLM's options that lullm lacks.
- `lora/`: an adapter's own settings.
- `layer/`: the parts of layers beside attention and MLPs.
- `family/`: the keys that an architecture reads, ignores and refuses.
- `encoding/`: the quantization of a checkpoint.
- `gguf/`: the header of a GGUF file, and the config in it; what it says of vectors and labels.
- `mistral/`: the config in Mistral's own layout.
- `parallel/`: the sizes of a worker's share.
- `pooling/`: a folder's settings for embeddings and scores.
- `vision/`: how a model sees pictures. `hearing/`: how a decoder hears.
"""
