"""What a dataset is: names, the law, its order, its parts, manifest and index."""
