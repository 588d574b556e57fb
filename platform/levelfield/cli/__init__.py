"""Arguments, exit codes and terminal output; no logic."""
