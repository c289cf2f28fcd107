"""Job files: what they may say, read and written."""
