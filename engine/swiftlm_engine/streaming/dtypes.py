"""Names of safetensors for the types of MLX that can be read in place."""

import mlx.core as mx

DTYPES = {
    "F32": mx.float32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "U32": mx.uint32,
    "U8": mx.uint8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
