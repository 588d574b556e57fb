"""Tables and logs of others, and tables in their columns."""
