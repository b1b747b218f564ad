"""Chats in OpenAI's words: conversations, tools, and the messages of answers."""
