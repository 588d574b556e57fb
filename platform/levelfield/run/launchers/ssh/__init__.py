"""Launcher `ssh`: one connection for each host, plain OpenSSH, code and environments brought to the nodes."""
