"""Pictures in a step: `rows` of the tower, kept; `planes` of positions; `mutual`, rows that see each other."""
