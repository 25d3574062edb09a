"""Numbers about a finished model: likelihood and fidelity metrics, and the statistics that say how far to trust them."""
