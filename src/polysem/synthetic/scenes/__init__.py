"""Emoji scenes: picture-book pictures of several objects, with captions, labels and boxes, made on the spot.

`make.py` is the way in. The other files go from words to pictures: `catalogue` and `vocabulary` say what there is
to draw, `splits` which kinds meet, `scene` where they stand, `backdrops` and `art` how it looks, `captions` what
can truthfully be said about it.
"""
