"""What the features of a dataset are: types, schema, labels, and the way back to them."""
