"""Code for data: recipes, tasks, splits, tokens, packing. It imports neither models nor stages."""
