"""Parts of the report stage: reading outputs, comparing models, drawing SVG, writing one HTML page and its CSV files."""
