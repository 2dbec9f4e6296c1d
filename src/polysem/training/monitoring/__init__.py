"""What a run shows of itself: a diagnosis while it trains, a terminal display, a report page."""
