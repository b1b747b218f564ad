"""OpenAI's Responses, without a memory: every request brings its whole conversation."""
