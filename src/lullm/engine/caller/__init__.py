"""The part of an engine that runs on its callers' event loops, wherever the engine itself runs.

`preparation`: what a client does with a request first (`length`, `media_part`). `entry`: the request's way into the
engine. `stream`, `backlog`: its outputs' way back.
"""
