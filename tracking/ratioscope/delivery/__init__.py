"""Getting rows from the journal to trackers: fan-out, background threads, sync."""
