"""Direct push to Alertmanager, for hosts without Prometheus."""
