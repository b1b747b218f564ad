"""The hardware of a worker: a CPU or a GPU behind one protocol that starts steps and waits for them.

`device` is the protocol, `cpu` and `cuda` are the devices, `choice` opens the one that a config names; `profiler`
records the steps of an engine.
"""
