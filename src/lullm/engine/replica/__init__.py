"""Data parallel: several engines with the same model, each in a process of its own, behind one client."""
