"""The worker: one device's model and memory, its sleep, and the runs of its plans.

`worker` has a `setup`, a `loaded_model` and `kv_pools`; `sizing` measures how large those may be. `warm_up` compiles
kernels before the first request, `pages_ahead` touches memory before it is used; `probe` makes spans of no request.
`meeting` is how workers find each other, `expert_places` how they change experts. `extension` adds the methods of a
caller's class; `remote_methods` are the names that a caller may call.

- `adapter/`: the adapters (LoRA) that were read, and those in use.
- `draft/`: a draft model, and steps of both models.
- `sleep/`: `Saving` plans a sleep, `Sleeper` does it.
"""
