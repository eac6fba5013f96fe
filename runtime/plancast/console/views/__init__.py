"""Views of plans as the API and the pages show them."""
