"""Several workers as plain data: the place of each of them."""
