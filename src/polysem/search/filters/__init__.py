"""Filters: `label = 'dog' and year > 2020`, parsed into a tree that is compiled, never pasted into a query.

    comparisons     =  !=  <  <=  >  >=           with 'text' (a quotation mark in it is doubled), numbers, true, false
    sets            year in (2020, 2021)          also `not in`
    texts           path like 'holiday/%.jpg'     % any signs, _ one sign, \\ before a sign that is meant;
                                                  A and a are equal
                    caption contains 'dog'        the very letters somewhere inside
    presence        camera is null                also `is not null`
    logic           not, and, or, parentheses     in this order of strength

A name is one of id, label, caption, path, side, or else a name of the item's metadata; dots go inside
(`camera.model`), double quotes hold unusual names (`"taken at"`), `metadata.` in front reaches a name that is taken.

A comparison holds if the item has the value, it is of the type compared with, and it compares so. A list stands for
each of its values: `label = 'dog'` holds if any label is. `contains` asks a list whether it has the value.
`!=` and `not …` hold exactly where the plain comparison does not, so also for items without the value: add
`and year is not null` to leave these out.
"""

from polysem.search.filters.evaluate import matches
from polysem.search.filters.parse import And, Compare, Field, Filter, FilterError, In, IsNull, Not, Or, parse

__all__ = ["And", "Compare", "Field", "Filter", "FilterError", "In", "IsNull", "Not", "Or", "matches", "parse"]
