"""``python -m shardwriter.beam``."""

from shardwriter.cli.beam import main

if __name__ == "__main__":
    main()
