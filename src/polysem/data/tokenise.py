"""Words of a caption, by the Treebank's conventions and without any download."""

from __future__ import annotations

import re

# In this order: what belongs together before what stands alone.
_TOKEN = re.compile(
    r"""
    \d+(?:[.,:]\d+)*(?:st|nd|rd|th)?        # 3, 1,000, 10:30, 2nd
    | [^\W\d_]+?(?=n't\b)                   # do|n't
    | n't\b | '(?:s|m|d|re|ve|ll)\b         # the clitics themselves
    | \w+(?:[-.]\w+)*                       # words, t-shirt, u.s
    | \.{2,} | -{2,}                        # ellipsis, dash
    | [^\w\s]                               # any other sign by itself
    """,
    re.VERBOSE,
)


def words(text: str) -> list[str]:
    """Lower-case words and signs: "A dog's ball, isn't it?" -> a dog 's ball , is n't it ?"""
    return _TOKEN.findall(text.lower().replace("’", "'"))
