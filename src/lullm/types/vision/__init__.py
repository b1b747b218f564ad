"""Pictures in prompts, cut into tiles, as plain data.

- `tile`: what a tower reads, and the places of rows in a prompt.
- `given`: rows that a caller gives.
- `grid`: squares that a picture was fitted into.
"""
