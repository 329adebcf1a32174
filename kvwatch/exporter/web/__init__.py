"""The HTTP front: server, routes, status page, JSON."""
