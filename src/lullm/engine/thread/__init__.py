"""The engine on a thread of its own: what is sent to it, which requests enter, when it sleeps by itself."""
