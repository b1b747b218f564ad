"""Many models behind one server, within one budget of memory. Loads no torch before a model is planned.

- `policy` decides who is awake and who waits, over `record`s of models and the `room` of a moment: plain, synchronous,
  by a clock that it is given.
- `fleet` is what a server has; `turns` calls the policy on the event loop, `work` does to `engines` what it decides.
- `member` is one model as an `EngineClient`, whether its engine is there or not; `status` says how it stands.
- `adapters` are those of a member, whether its engine is there or not.
- `options` says what is served, `need` how much memory it takes.
"""
