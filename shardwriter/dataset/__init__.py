"""What a dataset is: names, assignment, orders, splits, rank partition, manifest and index."""
