"""Pictures of requests: found in prompts, made tiles, given their places among tokens, and their `frame` of words."""
