"""Statistics of features: gathered file by file, merged, and held against each other."""
