"""The second room: snapshots become signals, signals become a verdict, a verdict becomes advice. Pure."""
