"""Pictures of requests: found in prompts, made tiles, given their places among the tokens."""
