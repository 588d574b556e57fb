"""Names into documents: cases, frameworks, vendors, chips and suites, from the checkout and from plugins."""
