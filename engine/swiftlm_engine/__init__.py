"""One model in one process: tokens in, tokens out."""
