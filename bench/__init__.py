"""Benchmarks: ours beside a named peer in the same run, on the same folder and machine."""
