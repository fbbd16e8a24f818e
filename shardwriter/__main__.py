"""Run the command line: ``python -m shardwriter``."""

from shardwriter.cli import main

main()
