"""What a finished run gave away, and whether its folders are what was signed."""
