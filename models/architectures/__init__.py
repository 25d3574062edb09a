"""Model families: one self-contained file each (decoder.py), and their published sizes (presets.py)."""
