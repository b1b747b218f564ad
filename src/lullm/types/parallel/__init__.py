"""Several workers as plain data: where each of them stands."""
