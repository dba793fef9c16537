"""Orders with their payments: two topics joined, as long as the payment comes within a minute.

for topic in orders payments paid; do skerry topic create $topic; done
skerry pipeline run examples/pipelines/joined.py
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import skerry


@skerry.pipeline(
    source={"orders": "orders", "payments": "payments"},
    sink="paid",
    format="json",
    schema={
        "orders": "order LONG, at TIMESTAMP, item STRING",
        "payments": "order LONG, at TIMESTAMP, sum DOUBLE",
    },
)
def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Watermarks tell Spark how long it has to remember either side."""
    left = orders.withWatermark("at", "1 minute").alias("o")
    right = payments.withWatermark("at", "1 minute").alias("p")
    soon = F.expr("o.order = p.order AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE")
    both = left.join(right, soon).select("o.order", "o.item", "p.sum")
    return both.selectExpr("to_json(struct(*)) AS value")
