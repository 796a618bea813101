"""Reading a run back from anywhere, in one type; judges nothing."""
