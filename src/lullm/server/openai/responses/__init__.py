"""OpenAI's Responses without stored state: every request has its whole conversation."""
