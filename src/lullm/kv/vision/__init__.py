"""Which rows of pictures the workers keep."""
