"""The sleep of one worker: its plan, its backups, their speeds, and the wake-up; and its share of a hibernation."""
