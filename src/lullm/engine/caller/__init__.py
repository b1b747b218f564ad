"""The part of an engine that runs on its callers' event loops, wherever the engine itself runs; and the forms of their prompts."""
