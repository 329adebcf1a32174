"""Runs measured and compared: the five lines of a load, a candidate against its base, a ladder of settings. Pure but for `formats`."""
