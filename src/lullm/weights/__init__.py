"""From a model folder to parameters in an arena: finding the folder, rules, streaming, dummy weights."""
