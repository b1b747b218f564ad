"""The checks of every request before a route: keys, web pages, bounds."""
