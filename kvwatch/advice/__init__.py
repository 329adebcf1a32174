"""A verdict and its signals become an ordered list of changes. Pure."""
