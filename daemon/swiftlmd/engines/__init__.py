"""Engine processes: their environment, their life, and the requests that run in them."""
