"""The runtimes of a node: Python environments and containers. Their classes implement the Runtime contract."""
