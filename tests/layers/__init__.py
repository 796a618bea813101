"""Tests in other environments; all files whose names begin alike belong to one layer."""
