"""Several sites as one: links, copies, promotion, failover, moves, outboxes."""
