"""The run's config: snapshot, lookup, redaction; knows no statistic."""
