"""The command line: `lullm`. `main` has a row per command, whose module is loaded with its flags; `parser` is
argparse that knows what was meant.

- `flag/`: flags made of options, settings from files and variables.
- `talk/`: run and chat, with an engine or a server. `remote/`: commands that call a running server.
- `model/`: the hub's cache, and quantized copies. `plan/`: what a model takes of a machine, or of several devices.
- `serve`, `run_batch`, `memory`, `doctor`, `completion`: a command each.
- `bench/`: load for any server; latency, throughput and start of an engine.
"""
