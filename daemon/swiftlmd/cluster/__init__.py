"""The hosts of a group: kept in the configuration, looked at over their agents, lent by `join`."""
