"""The past: recordings, and the same classifier over them."""
