"""The parts of a layer that replace a dense MLP or attention: a mixture of experts, recurrent states."""
