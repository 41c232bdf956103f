"""The daemon as a service: one instance, supervisors, restarts, sleep, logs."""
