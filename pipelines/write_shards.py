"""Write data as N TFRecord shards on a Beam runner.

    python pipelines/write_shards.py photos out/train@16 --shuffle

The same as ``shardwriter beam``; ``--help`` lists the options, and Beam's go with them.
"""

from shardwriter.cli.beam import write_shards

if __name__ == "__main__":
    write_shards()
