"""What the engine and the model are configured with: frozen, checked once, fully resolved before anything is built."""
