"""A batch as it comes in, checked: knows no rule."""
