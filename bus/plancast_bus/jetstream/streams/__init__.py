"""Stream definitions, their health, and admission to full streams."""
