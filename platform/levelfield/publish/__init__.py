"""Published tables of others, and tables for publication: audits, conversions, withheld cells."""
