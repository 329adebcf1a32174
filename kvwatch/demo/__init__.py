"""``kvwatch demo``: the daemon against the simulated vLLM, the whole story in a minute, no GPU."""
