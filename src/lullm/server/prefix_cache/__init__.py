"""The prefix cache that a server leaves in a folder when it ends, and reads when it starts."""
