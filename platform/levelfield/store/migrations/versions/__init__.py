"""One module for each step; its number is the version of the schema that it makes."""
