"""Snapshots become signals, and signals become a verdict. Pure."""
