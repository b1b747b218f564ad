"""How one worker sleeps: what is saved, where, how fast, and how it comes back."""
