"""Federated learning without a common beat."""
