"""Expert streaming: a mixture of experts larger than memory, read from disk as routers ask."""
