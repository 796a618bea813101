"""The diagnosis while a run goes on."""
