"""Memory for large tensors: an engine reserves addresses once and keeps them; the memory behind them comes and goes."""
