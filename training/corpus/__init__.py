"""What the demo model learns: documents made by rules."""
