"""The engine, nats-server: find it, configure it, supervise it, speak to it."""
