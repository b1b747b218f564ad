"""The start of an engine: reads its model's folder, and fetches files and memory ahead."""
