"""A draft model beside the model: `draft` has its weights and its steps, `paired_steps` runs steps of both."""
