"""From a host view to named numbers; host only."""
