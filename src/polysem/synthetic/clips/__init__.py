"""Emoji clips: short videos of moving emoji whose every moment is known, made where no data set is at hand.

A clip shows one backdrop and, moment after moment, another object doing something. Its captions say what happens; the
list of its moments says when, which is the truth that a search for moments is measured against.
"""
