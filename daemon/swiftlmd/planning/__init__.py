"""What a load will take, before it is taken."""
