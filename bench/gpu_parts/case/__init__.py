"""What `correctness` checks: data, references, bounds."""
