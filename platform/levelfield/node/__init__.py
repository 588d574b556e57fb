"""The first process of a node. It uses the standard library and Python 3.8 syntax: vendors' images run it too."""
