"""The parts of layers beside plain ones: recurrent layers, experts, encoders; and the numbers of `heads`."""
