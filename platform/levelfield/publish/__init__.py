"""Others' published tables, and ours for others: audits, conversions, foreign columns, withheld cells, weights."""
