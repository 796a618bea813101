"""Views that trackers are told to show."""
