"""The wordings of every form of claim."""

from __future__ import annotations

# {A} is "two red apples", {a} "the two red apples", {L} a list of all, {S} where it is (may be empty), {P} the same
# but never empty, {is} agrees with A. A form that speaks of "there is" is not used for the sun.
_RELATED = (
    "{A} {rel} {B} {S}",
    "{A} {is} {rel} {B}",
    "{a} {is} {rel} {b}",
    "{rel} {b} there {is} {A}",
    "{rel} {b} you can see {A}",
)
TEMPLATES: dict[str, tuple[str, ...]] = {
    "alone": ("here {is} {A}", "look, {A}!", "a picture of {A}", "can you see {a}?"),
    "where": ("{A} {P}", "there {is} {A} {P}", "you can see {A} {P}", "{P} there {is} {A}", "{a} {is} {P}"),
    "doing": ("{A} {doing} {S}", "{A} {is} {doing} {S}", "{a} {is} {doing} {S}", "you can see {A} {doing} {S}"),
    "count": (
        "{A_plain} {S}",
        "there {is} {A_plain} {S}",
        "I count {A_plain} {S}",
        "{A_plain} in one picture",
        "look at {a_plain}!",
    ),
    "colour": (
        "{A_coloured} {S}",
        "{a_plain} {is} {colour}",
        "there {is} {A_coloured} {S}",
        "we can see {A_coloured} {S}",
        "look, {A_coloured} {S}!",
        "a picture of {A_coloured} {S}",
    ),
    "position": ("{A} {side}", "{side} there {is} {A}", "{a} {is} {side} of the picture", "{A} can be seen {side}"),
    "bigger": (
        "{a} {is} bigger than {b}",
        "{A} {is} much bigger than {B} here",
        "a big {A_bare} and a small {B_bare} {S}",
    ),
    "largest": ("the biggest thing here is {A}", "{a} {is} bigger than everything else here", "a big {A_bare} {S}"),
    "group": (
        "{total} {members} {S}",
        "there are {total} {members} {S}",
        "{total} {members}: {L}",
        "we see {total} {members} {S}",
    ),
    "group_with": ("{total} {members}, and one of them is {A}", "{A} is one of the {total} {members} here"),
    "group_and": (
        "{total} {members} and {Z} {S}",
        "{Z} with {total} {members} {S}",
        "besides {total} {members} there {isZ} {Z}",
    ),
    "total": ("{total} things in one picture: {L}", "this picture shows {total} things: {L}"),
    "two": (
        "{A} and {B} {S}",
        "{A} with {B} {S}",
        "{A} together with {B} {S}",
        "there {is} {A} and {B} {S}",
        "you can see {A} and {B} {S}",
        "{P} there {is} {A} and {B}",
        "{A} as well as {B} {S}",
        "a picture with {A} and {B}",
    ),
    "many": (
        "{L} {S}",
        "there {is} {L} {S}",
        "{P} you can see {L}",
        "{P} there {is} {L}",
        "a picture of {L}",
        "{L} are all {P}",
        "{A} with {rest} {S}",
        "{A} together with {rest} {S}",
    ),
    "left": _RELATED,
    "right": _RELATED,
    "above": _RELATED,
    "below": _RELATED,
    "over": _RELATED,
    "beneath": _RELATED,
    "beside": (*_RELATED, "{A} and {B} side by side {S}", "{A} and {B} close together {S}"),
    "front": (*_RELATED, "{A} in front and {B} behind", "{a} partly {hides} {b}"),
    "behind": (*_RELATED, "{a} {is} partly hidden behind {b}"),
    "peek": ("{a} {peeks} out from behind {b}", "{A} {peeks} out from behind {B} {S}"),
    "sides": (
        "on the left {is} {A}, on the right {B}",
        "{A} on the left and {B} on the right",
        "{A} to the left, {B} to the right",
    ),
    "between": (
        "{A} between {B} and {C} {S}",
        "{a} {is} between {b} and {c}",
        "{B} and {C} with {A} in between",
        "between {b} and {c} there {is} {A}",
    ),
    "row": (
        "from left to right: {A}, {B} and {C}",
        "{A}, then {B} and then {C}, from left to right",
        "{A} on the left, {B} in the middle and {C} on the right",
    ),
    "under": (
        "{A} and {B} under {C} {S}",
        "{C} above {A} and {B}",
        "{C} over {a} and {b}",
        "below {c} there {is} {A} and {B}",
    ),
}
"""Form of claim -> its wordings."""

RELATIONS = {
    "left": ("to the left of", "left of"),
    "right": ("to the right of", "right of"),
    "above": ("above",),
    "below": ("below",),
    "over": ("above", "over"),
    "beneath": ("below", "under"),
    "beside": ("next to", "beside", "close to"),
    "front": ("in front of",),
    "behind": ("behind",),
}
"""Form of claim -> the words for its relation."""
