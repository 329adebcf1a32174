"""The third room: verdicts become metric families, alerts and pages."""
