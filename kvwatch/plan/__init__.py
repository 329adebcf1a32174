"""``kvwatch plan``: KV arithmetic before anything is served, or for what is served now."""
