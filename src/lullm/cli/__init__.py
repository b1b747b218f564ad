"""The command line: `lullm`. `main` has a row per command, whose module is loaded with its flags.

- `flag/`: flags made of options, settings from files and variables.
- `talk/`: run and chat, with an engine or a server. `remote/`: commands that call a running server.
- `model/`: the hub's cache, and quantized copies. `plan/`: what a model takes of a machine, or of several devices.
- `bench/`: load for any server; latency, throughput and start of an engine.
"""
