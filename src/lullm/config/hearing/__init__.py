"""What a model folder says about sounds in prompts: `hearing` is the result, `reading` reads it, `conformer` that of
another kind of encoder."""
