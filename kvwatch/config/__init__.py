"""Settings, each written once, and the places they are read from."""
