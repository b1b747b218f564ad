"""OpenAI's completions and chat completions: bodies, checks, answers whole or streamed."""
