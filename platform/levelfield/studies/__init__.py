"""Studies of several runs: where two frameworks differ, the error of predictions, the size of noise."""
