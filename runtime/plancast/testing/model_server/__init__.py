"""A model server on loopback that speaks the OpenAI protocol, with scripted answers."""
