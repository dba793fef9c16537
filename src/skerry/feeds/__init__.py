"""Feeds and subscriptions by query: the site's part (`site`, `view`, and `simple` for clients that
lack the SDK), the client's (`feed`, `subscription`). The language and the index are in
`skerry.query`."""
