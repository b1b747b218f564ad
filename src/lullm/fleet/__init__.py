"""Many models behind one server, within one budget of memory. Loads no torch before a model is planned or loaded.

`policy` decides who is awake and who waits, over `record`s of models and the `room` of a moment: plain, synchronous, by
a clock that is given. `fleet` does it on the event loop; `member` is one model as an `EngineClient`, whether its engine
is there or not. `spec` and `options` say what is served, `need` how much memory it takes, `snapshot` how it stands.
"""
