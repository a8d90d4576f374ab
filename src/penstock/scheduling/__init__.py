"""Schedules in a program: how they are declared, and who fires them."""
