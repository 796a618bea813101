"""Run config: snapshot, lookup of settings, redaction of secrets; knows no statistic."""
