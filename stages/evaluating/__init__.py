"""Parts of the evaluate stage."""
