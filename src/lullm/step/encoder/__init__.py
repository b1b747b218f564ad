"""An encoder's rows in a step: `split` takes them out of the plan, `writer` puts them into the cache,
`watch` tells what tokens attend to in them.
"""
