"""A node's first process. Standard library only, in the syntax of Python 3.8: it also runs in vendors' images."""
