"""``kvwatch check URL``: one diagnosis of a live server, for people and scripts."""
