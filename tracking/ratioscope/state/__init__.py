"""The format of what merges: names of its entries, bins, table columns."""
