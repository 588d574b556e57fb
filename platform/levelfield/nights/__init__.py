"""What runs and judges a night: entries, the control of a machine, pairs of builds, the gate, and bisection."""
