"""Classes, functions and errors in a form for other processes: by name, or as words."""
