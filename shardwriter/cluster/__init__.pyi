from .beam import KeepText as KeepText
from .beam import ReadShards as ReadShards
from .beam import ShardStats as ShardStats
from .beam import WriteShards as WriteShards
from .place import place_for as place_for
