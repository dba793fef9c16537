"""Where things are: the coordination store of a region, and its copy at every site."""
