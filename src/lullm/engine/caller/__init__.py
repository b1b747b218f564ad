"""The part of an engine that runs on its callers' event loops, wherever the engine itself runs. `media_part`: parts
of prompts that are no text. `preparation`: what a client does with a request first.
"""
