"""Services of the routes: access, limits, errors and the plan index."""
