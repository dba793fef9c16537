"""A function: the mean of each sensor's readings so far, published with every reading."""

import skerry


@skerry.function(decode="json")
def mean(ctx, event):  # type: ignore[no-untyped-def]
    """Add a reading to the mean of its key."""
    count, total = ctx.state.get(event.key, (0, 0))
    count, total = count + 1, total + event.data
    ctx.state[event.key] = (count, total)
    ctx.publish("means", {"of": event.key, "count": count, "mean": total / count}, key=event.key)
