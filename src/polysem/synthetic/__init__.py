"""Built-in data sets, made on the spot: emoji scenes (pictures) and emoji clips (videos)."""
