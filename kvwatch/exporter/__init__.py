"""What others see: metrics, the status page and JSON, alerts pushed to Alertmanager."""
