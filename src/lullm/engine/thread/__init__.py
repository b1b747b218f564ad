"""The engine on a thread of its own: its mailbox, the admission of requests, sleep after idle time."""
