"""What stands for a number of layers in `gpu_layers`, where it is not a number."""

ALL_LAYERS = 0xFFFFFFFF
AUTO_LAYERS = 0xFFFFFFFE
