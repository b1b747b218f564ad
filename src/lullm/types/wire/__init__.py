"""What goes to another process by a name or as words: classes, functions, errors."""
