"""Emoji scenes: picture-book pictures of several objects, with captions, labels and boxes, made on the spot.

`make.py` is the way in. The other files go from words to pictures: `catalogue` says what there is to draw and what it
is called, `scene` which kinds meet and where they stand, `art` and `painting` how it looks, `caption_facts` what is
true of it, `captions` how that is said.
"""
