"""Reading a dataset: random access, epochs and rank partitions, torch, TensorFlow, loader code."""
