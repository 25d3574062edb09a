"""Cleaning of one source's text: what policy.py reads from the mixture, in the order in which policy.py applies it."""
