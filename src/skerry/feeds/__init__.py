"""Feeds and subscriptions by query: the site's part (`site`, `view`), the client's (`feed`,
`subscription`). The language and the index are in `skerry.query`."""
