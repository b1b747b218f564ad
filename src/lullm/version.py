"""The version of lullm, for all rooms."""

VERSION = "0.1.0"
