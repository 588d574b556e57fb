"""The contracts that a plugin author imports. They use the standard library, `regex` and
`levelfield.specs` only."""
