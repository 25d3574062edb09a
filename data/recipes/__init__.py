"""Recipes: one file a corpus of pretraining text; index.py names them."""
