"""What names, tables of frames and other tools' metadata say of shards, held against them."""
