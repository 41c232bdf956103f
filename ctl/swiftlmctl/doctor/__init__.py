"""What `doctor` examines."""
