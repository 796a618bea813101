"""Tests of mlflow."""
