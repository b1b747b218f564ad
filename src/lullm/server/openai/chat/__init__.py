"""OpenAI's chats: conversations, tools, and the messages of answers."""
