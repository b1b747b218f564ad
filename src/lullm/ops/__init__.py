"""The table of functions every model is written against, and the versions that fill it."""
