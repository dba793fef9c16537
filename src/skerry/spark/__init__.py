"""Topics as Spark tables and streams: `spark.read.format("skerry")`, and a session that knows it.

spark = skerry.spark.session()
spark.read.format("skerry").option("topic", "sensors/#").load().show()
"""

from skerry.spark.history import history
from skerry.spark.session import register, session

__all__ = ["history", "register", "session"]
