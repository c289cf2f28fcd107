"""What differs between kinds of learning: linear models, embeddings, rows at edges."""
