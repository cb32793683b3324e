"""Seriatim."""
