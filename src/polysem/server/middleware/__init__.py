"""ASGI middleware and connection limits of the server."""
