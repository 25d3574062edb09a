"""Record formats: what people's records look like, and the one form each kind of record becomes here; `index` names them."""
