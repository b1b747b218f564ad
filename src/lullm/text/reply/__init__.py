"""Replies: a model's answer as text, thinking and tool calls, whole or streamed."""
