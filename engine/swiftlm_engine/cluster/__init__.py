"""One model over several processes: rank 0 decides and serves, the others follow its steps."""
