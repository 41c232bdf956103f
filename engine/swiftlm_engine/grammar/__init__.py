"""Constrained decoding: schemas and tool grammars to masks over the vocabulary."""
