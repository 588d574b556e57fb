"""What a plugin author imports. Standard library and `levelfield.specs` only."""
