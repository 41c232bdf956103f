"""Opening a model: what is loaded, checked and wired together before the first request."""
