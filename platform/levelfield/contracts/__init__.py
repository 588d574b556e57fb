"""The contracts that a plugin author imports. They use the standard library and `levelfield.specs` only."""
