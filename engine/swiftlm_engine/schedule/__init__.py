"""Who decodes, who prefills, who waits. No tensors."""
