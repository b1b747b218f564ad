"""What stands in a layer in place of a dense MLP or of attention: a mixture of experts, recurrent states."""
