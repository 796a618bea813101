"""The rule and its application; knows nothing of counting."""
