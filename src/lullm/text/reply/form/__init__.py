"""The forms of replies: a catalogue by name, and the detection of a model's own."""
