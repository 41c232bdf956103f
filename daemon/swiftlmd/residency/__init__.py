"""Which models are loaded: leases, eviction, watchdog, crash budget."""
