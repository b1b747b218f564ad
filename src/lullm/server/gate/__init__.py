"""What every request passes before a route: keys, web pages, bounds."""
