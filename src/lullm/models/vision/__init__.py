"""What reads pictures, beside a decoder: a tower and a connector. `reader` is both; `rules`: their names."""
