from .beam import ReadShards as ReadShards
from .beam import SaveText as SaveText
from .beam import ShardStats as ShardStats
from .beam import WriteShards as WriteShards
from .launch import open_launch as open_launch
