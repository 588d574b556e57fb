"""Where the time of a training step goes: recorded steps into parts, and why one step takes longer than another."""
