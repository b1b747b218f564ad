"""The parts of layers beside attention and a plain MLP: recurrent layers, and experts."""
