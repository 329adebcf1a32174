"""The first room: a URL becomes bytes, bytes become samples, samples become snapshots."""
