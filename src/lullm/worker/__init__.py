"""The worker: runs one plan on one device."""
