"""Say what shard-stats says, by a Beam runner.

    python pipelines/shard_stats.py out/train@16

The same as ``shardwriter beam``; ``--help`` lists the options, and Beam's go with them.
"""

from shardwriter.cli.beam import shard_stats

if __name__ == "__main__":
    shard_stats()
