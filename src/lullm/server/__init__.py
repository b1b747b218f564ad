"""The HTTP face: an OpenAI-compatible server over an `EngineClient`. Loads no torch."""
