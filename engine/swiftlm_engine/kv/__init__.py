"""Exact KV that sequences share: buffers, tables over them, attention over several of them."""
