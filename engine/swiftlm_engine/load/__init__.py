"""Weights and devices: from a folder to a model that computes."""
