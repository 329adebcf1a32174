"""HTTP to others, within one deadline: what the poller and the Alertmanager push share."""
