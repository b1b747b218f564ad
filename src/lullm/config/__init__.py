"""What the engine and the model are configured with: frozen, checked once, fully resolved before anything is built.

`engine` is what the user says, `resolved` what an engine is built from; `model` and `decoder` are a `config.json`: its
common part, and the family's own. `json_file` reads JSON files with a bound.

- `option/`: an option is declared once, for flags, docs and checks; and what becomes of vLLM's others.
- `family/`: which keys an architecture reads, ignores and refuses.
- `encoding/`: how a checkpoint is quantized. `gguf/`: the header of a GGUF file, and the config that it says.
- `parallel/`: the sizes of a worker's share. `pooling/`: what a folder says of embeddings and scores.
"""
