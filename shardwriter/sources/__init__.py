"""Where items come from: one file for each format, and shards that are read as input."""
