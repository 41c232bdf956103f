"""Quantized weights held as float32, which MLX's CPU back end multiplies many times faster."""
