"""Copies of tables, made of changes alone."""
