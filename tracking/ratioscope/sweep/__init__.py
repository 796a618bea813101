"""What another threshold would have done."""
