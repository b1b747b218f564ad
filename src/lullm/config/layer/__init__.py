"""What layers are made of beside attention and a plain MLP: recurrent layers, and experts."""
