"""Labels: how many there are of each, in which shards, and in what order they stand."""
