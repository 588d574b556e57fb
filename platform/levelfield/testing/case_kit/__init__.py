"""`case new` and `case check`: a case from a published configuration, and what it is held to before it runs."""
