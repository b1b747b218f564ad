"""The part of an engine that runs on its callers' event loops, wherever the engine itself runs. `prompt_form`: what
their prompts may be. `media_part`: parts of prompts that are no text. `preparation`: what a client does with a request
first. `limits`: what an engine takes of it.
"""
