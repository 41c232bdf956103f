"""A request inside the daemon: resolved, admitted, registered, served by a leased model."""
