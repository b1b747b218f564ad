"""The command line: `lullm`. `main` has a row per command and loads a command's module with its flags. `parser` is
argparse with suggestions.

- `flag/`: flags made of options, settings from files and variables.
- `talk/`: run and chat, with an engine or a server. `remote/`: commands for a running server.
- `model/`: the hub's cache, and quantized copies. `plan/`: a model's needs on a machine, or on several devices.
- `serve`, `run_batch`, `memory`, `doctor`, `completion`: a command each; `fleet` reads the models of `serve`.
- `bench/`: load for any server; latency, throughput and start of an engine.
"""
