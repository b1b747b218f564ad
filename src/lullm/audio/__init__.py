"""Sounds: samples at another rate (`resampling`), and the `features` that an encoder reads of them."""
