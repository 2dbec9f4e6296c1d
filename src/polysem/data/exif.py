"""What a camera wrote into a picture: when it was taken, and with what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image

_DATE = re.compile(r"(\d{4}):(\d\d):(\d\d) (\d\d:\d\d:\d\d)")


def camera_facts(path: Path) -> dict[str, Any]:
    """`taken` ("2021-07-04 10:30:00"), `year` and `camera`, as far as the file says. Reads its header alone."""
    try:
        with Image.open(path) as image:
            exif = image.getexif()
            details = exif.get_ifd(ExifTags.IFD.Exif)
    # A header can be damaged in as many ways as a picture; what it says is a convenience.
    except Exception:
        return {}
    facts: dict[str, Any] = {}
    date = _DATE.match(str(details.get(ExifTags.Base.DateTimeOriginal) or exif.get(ExifTags.Base.DateTime) or ""))
    if date and int(date[1]) > 0:
        facts |= {"taken": f"{date[1]}-{date[2]}-{date[3]} {date[4]}", "year": int(date[1])}
    model = exif.get(ExifTags.Base.Model)
    if isinstance(model, str) and (name := model.replace("\0", "").strip()):
        facts["camera"] = name
    return facts
