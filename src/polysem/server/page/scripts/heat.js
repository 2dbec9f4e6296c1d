// Heat maps over a picture: where an element of its set looks. One colour scale for all that are shown together.

// Magma: even steps for the eye, in grey too, and for colour-blind readers.
const STOPS = [
  [0, 0, 4],
  [28, 16, 68],
  [79, 18, 123],
  [129, 37, 129],
  [181, 54, 122],
  [229, 80, 100],
  [251, 135, 97],
  [254, 194, 135],
  [252, 253, 191],
];

/** [r, g, b] for a share from 0 to 1. */
export function colour(share) {
  const at = Math.min(1, Math.max(0, share)) * (STOPS.length - 1),
    low = Math.min(STOPS.length - 2, Math.floor(at));
  return STOPS[low].map((value, i) => Math.round(value + (STOPS[low + 1][i] - value) * (at - low)));
}

// The canvas multiplies the picture: bright colours let it through, dark ones hide it, though never wholly.
const opacity = (share) => 0.72 + 0.13 * share;
const shareOf = (value, { min, max }) => (max > min ? (value - min) / (max - min) : 0);

const heat = (share) => [...colour(share), opacity(share)];

// A glow lies on the picture: dark where there is nothing, warm where there is much, which shows on dark things too.
const DARKEST = 0.8,
  GLOW = [255, 158, 26],
  GLOWING = 0.42;
function glow(share) {
  const warm = GLOWING * share,
    alpha = DARKEST * (1 - share) + warm;
  return [...GLOW.map((value) => Math.round((value * warm) / alpha)), alpha];
}

/** Draws shares from 0 to 1 as a glow, for a canvas that does not multiply. */
export const drawGlow = (canvas, attention) => drawHeat(canvas, attention, { min: 0, max: 1 }, glow);

/** Draws an element's attention on a canvas that lies over its picture. paint(share): [r, g, b, opacity]. */
export function drawHeat(canvas, attention, scale, paint = heat) {
  const shade = (share) => `rgb(${paint(share).slice(0, 3).join(" ")} / ${paint(share)[3]})`;
  const wide = 240,
    high = Math.max(1, Math.round(wide / (canvas.ratio || 1)));
  canvas.width = wide;
  canvas.height = high;
  const pen = canvas.getContext("2d");
  if (attention?.kind === "grid") {
    const [x0, y0, x1, y1] = attention.window ?? [0, 0, 1, 1];
    pen.fillStyle = shade(0);
    pen.fillRect(0, 0, wide, high);
    pen.clearRect(x0 * wide, y0 * high, (x1 - x0) * wide, (y1 - y0) * high);
    pen.imageSmoothingQuality = "high";
    drawCells(pen, attention.values, scale, paint, x0 * wide, y0 * high, (x1 - x0) * wide, (y1 - y0) * high);
  } else if (attention?.kind === "boxes") {
    pen.fillStyle = shade(0);
    pen.fillRect(0, 0, wide, high);
    // The weakest first: a box over another shows the stronger of the two.
    for (const [x0, y0, x1, y1, weight] of [...attention.boxes].sort((a, b) => a[4] - b[4])) {
      const share = shareOf(weight, scale),
        place = [x0 * wide, y0 * high, (x1 - x0) * wide, (y1 - y0) * high];
      if (share < 0.02) continue;
      pen.clearRect(...place);
      pen.fillStyle = shade(share);
      pen.fillRect(...place);
      pen.strokeStyle = `rgb(${colour(share)})`;
      pen.strokeRect(...place);
    }
  }
}

/** Cells as one pixel each, enlarged smoothly. The outermost are repeated, else they would fade out at the border. */
function drawCells(pen, values, scale, paint, x, y, wide, high) {
  const rows = values.length,
    columns = values[0]?.length ?? 0;
  if (!rows || !columns) return;
  const small = new OffscreenCanvas(columns + 2, rows + 2),
    paper = small.getContext("2d"),
    image = paper.createImageData(columns + 2, rows + 2);
  const inside = (place, size) => Math.min(size - 1, Math.max(0, place - 1));
  for (let row = 0; row < rows + 2; row++) {
    for (let column = 0; column < columns + 2; column++) {
      const [red, green, blue, alpha] = paint(shareOf(values[inside(row, rows)][inside(column, columns)], scale));
      image.data.set([red, green, blue, Math.round(255 * alpha)], 4 * (row * (columns + 2) + column));
    }
  }
  paper.putImageData(image, 0, 0);
  pen.drawImage(small, 1, 1, columns, rows, x, y, wide, high);
}

/** The scale from its least to its greatest value. */
export function drawScale(canvas) {
  canvas.width = 256;
  canvas.height = 1;
  const pen = canvas.getContext("2d");
  for (let x = 0; x < 256; x++) {
    pen.fillStyle = `rgb(${colour(x / 255)})`;
    pen.fillRect(x, 0, 1, 1);
  }
}
