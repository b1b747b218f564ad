"""Families of `config.family.renamed`: the rules for their checkpoints."""
