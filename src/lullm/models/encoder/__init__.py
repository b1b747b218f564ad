"""What reads a request's input beside a decoder: `layers` over its rows. `sound`: of what is heard; `text`. `hearing`:
of sounds whose rows stand in prompts; `conformer`: of another kind.
"""
