"""Prefix cache: KV kept across requests, in RAM and on SSD."""
