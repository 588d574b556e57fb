"""Makes one frozen Plan from the user's request and this machine. Nothing is started or written here."""
