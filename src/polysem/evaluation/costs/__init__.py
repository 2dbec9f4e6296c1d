"""What a model costs: arithmetic, time, memory."""
