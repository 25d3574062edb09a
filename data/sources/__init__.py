"""Readers of files in any common shape: `files` finds, opens and decodes them, `readers` takes records out of them."""
