"""The server: an index over HTTP, for programs and for the page.

    from polysem.server import Settings, serve
    serve("my-index", Settings(port=8000))

Importing it loads no torch: the server answers while the model is still loading.
"""

from polysem.server.app import create_app
from polysem.server.run import serve
from polysem.server.settings import Limits, Settings

__all__ = ["Limits", "Settings", "create_app", "serve"]
