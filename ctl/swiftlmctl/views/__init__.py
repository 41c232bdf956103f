"""Tables and lines that verbs print."""
