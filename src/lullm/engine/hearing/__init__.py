"""Sounds of requests whose rows stand in prompts: found there, made tiles, given their places among tokens."""
