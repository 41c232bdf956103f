"""One model over several devices: layers, heads, pipelines."""
