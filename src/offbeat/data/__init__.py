"""Tables with sample ids, joined, split, prepared per party; real sets by name and generated ones."""
