"""Sounds: from a file's bytes to samples (`source`, `wave`), at another rate (`resampling`), to the `features` that an
encoder reads, or to `filter_banks`; `tiling`: those of its windows, for a decoder that hears. `windows`: a long sound
in pieces. `transcript`: what was said in it, and when.
"""
