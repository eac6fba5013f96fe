"""JSON values: normalization, limits, schemas, differences, abbreviation."""
