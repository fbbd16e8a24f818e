"""Write the records of TFRecord files anew, as another number of shards.

    python pipelines/reshard.py out/train@16 out/more@64

The same as ``shardwriter beam``; ``--help`` lists the options, and Beam's go with them.
"""

from shardwriter.cli.beam import reshard_shards

if __name__ == "__main__":
    reshard_shards()
