"""The worker: one device's model and memory, its sleep, and the runs of its plans.

`warm_up` compiles kernels before the first request; `extension` has methods that a caller brings along.

- `sleep/`: `Saving` plans a sleep, `Sleeper` does it.
"""
