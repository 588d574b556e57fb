"""What a node runs in. Each module offers a class that keeps the Runtime contract."""
