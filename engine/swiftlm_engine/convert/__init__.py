"""GGUF files become MLX model folders, block by block and without loss where the formats agree.

Runs as its own process (`python -m swiftlm_engine.convert SOURCE OUT`), numpy and gguf only: the
daemon starts it, reads its progress lines and kills it when somebody cancels.
"""
