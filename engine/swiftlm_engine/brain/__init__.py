"""The part of the engine without tensors: plans, schedules, prices. Runs on any machine, no MLX."""
