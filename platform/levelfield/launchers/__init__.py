"""How nodes are reached. Each module offers a class that keeps the Launcher contract."""
