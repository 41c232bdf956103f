"""GPU kernels as text, compiled when first used: one body, two thin dialects (Metal and CUDA)."""
