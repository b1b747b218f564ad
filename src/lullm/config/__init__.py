"""What the engine and the model are configured with: frozen, checked once, fully resolved before anything is built.

An engine: `engine` is what the user says, of `engine_option` (options that mean the same for all) and `user_option`
(those that may be left open); `agreement` refuses what does not go together; `resolved` is what an engine is built
from.

A model: `model` and `decoder` are a `config.json`, its common part and the family's own, with its `rope`;
`generation` has a model's own sampling parameters; `field` and `json_file` read files with bounds.

- `option/`: an option is declared once, for flags, docs and checks; and what becomes of vLLM's others.
- `layer/`: what layers are made of beside attention and MLPs.
- `family/`: which keys an architecture reads, ignores and refuses.
- `encoding/`: how a checkpoint is quantized. `gguf/`: the header of a GGUF file, and the config that it says.
- `parallel/`: the sizes of a worker's share. `pooling/`: what a folder says of embeddings and scores.
"""
