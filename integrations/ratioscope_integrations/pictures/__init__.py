"""Pictures of distributions, for trackers that show images."""
