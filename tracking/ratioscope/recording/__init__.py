"""The training side: what the user holds in a loop."""
