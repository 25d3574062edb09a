"""Small trainable additions to a frozen model."""
