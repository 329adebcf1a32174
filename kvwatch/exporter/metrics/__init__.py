"""Views become metric families."""
