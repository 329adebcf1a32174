"""The running process: a watch for each target, the schedule, the log, the health check."""
