"""The statements that Python sends, and how their rows are read."""
