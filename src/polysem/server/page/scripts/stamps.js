// Small pictures copied into an image, pixel by pixel. Without a graphics card a canvas takes several times as long for
// the same: five thousand calls of drawImage cost more than looking at every pixel oneself.

/** pixels: RGBA of a square of this side. */
export function stampOf(side, draw) {
  const paper = new OffscreenCanvas(side, side),
    pen = paper.getContext("2d", { willReadFrequently: true });
  draw(pen);
  return { side, pixels: pen.getImageData(0, 0, side, side).data };
}

/** Lays a stamp over the image, its upper left corner at (left, top), which may lie outside. */
export function lay({ side, pixels }, image, left, top) {
  const { width, height, data } = image;
  const firstX = Math.max(0, -left),
    lastX = Math.min(side, width - left),
    lastY = Math.min(side, height - top);
  for (let y = Math.max(0, -top); y < lastY; y++) {
    for (let x = firstX; x < lastX; x++) {
      const from = 4 * (y * side + x),
        over = pixels[from + 3];
      if (over === 0) continue;
      const to = 4 * ((top + y) * width + left + x);
      if (data[to + 3] === 0) {
        // nothing there yet, as a rule
        data[to] = pixels[from];
        data[to + 1] = pixels[from + 1];
        data[to + 2] = pixels[from + 2];
        data[to + 3] = over;
        continue;
      }
      const under = (data[to + 3] * (255 - over)) / 255,
        whole = over + under;
      data[to] = (pixels[from] * over + data[to] * under) / whole;
      data[to + 1] = (pixels[from + 1] * over + data[to + 1] * under) / whole;
      data[to + 2] = (pixels[from + 2] * over + data[to + 2] * under) / whole;
      data[to + 3] = whole;
    }
  }
}
