"""A URL becomes bytes, bytes become samples, samples become snapshots."""
