"""One plan on one device: its batch, the input at fixed addresses, recorded decodes, block moves, the run itself."""
