"""What the user requests and what this machine has, into one frozen Plan. Nothing is started or written here."""
