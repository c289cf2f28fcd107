"""What a finished run gave away."""
