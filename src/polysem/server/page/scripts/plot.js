// Points on a canvas that is dragged, zoomed and walked. Markers are drawn once for each colour and shape and then
// copied, and what follows the pointer lies on a canvas of its own: moving over the map redraws none of the points.
import { listen } from "./plot_input.js";
import { lay, stampOf } from "./stamps.js";
import { isDark } from "./theme.js";

const CELLS = 96;

export class Plot {
  /** points: { x, y, text: bool, group: number } with x and y anywhere. */
  constructor(canvas, overlay, { colourOf, hovered, clicked }) {
    Object.assign(this, { canvas, overlay, colourOf, hovered, clicked, points: [], over: -1, shown: () => true });
    this.pen = canvas.getContext("2d");
    this.overPen = overlay.getContext("2d");
    this.frames = [];
    new ResizeObserver(() => this.resize()).observe(canvas);
    listen(this);
  }

  set(points) {
    let left = Infinity,
      right = -Infinity,
      top = Infinity,
      bottom = -Infinity;
    for (const { x, y } of points) {
      left = Math.min(left, x);
      right = Math.max(right, x);
      top = Math.min(top, y);
      bottom = Math.max(bottom, y);
    }
    const size = Math.max(right - left, bottom - top) || 1;
    this.points = points.map((each) => ({ ...each, x: (each.x - left) / size, y: (each.y - top) / size }));
    this.extent = [(right - left) / size || 1, (bottom - top) / size || 1];
    // Drawn in an order of its own, the same every time: the last group would else cover the others.
    this.order = this.points.map((_, i) => i).sort((a, b) => ((a * 7919) % 10007) - ((b * 7919) % 10007) || a - b);
    this.cells = new Map();
    this.points.forEach((point, i) => {
      const key = this.cell(point.x, point.y);
      if (!this.cells.has(key)) this.cells.set(key, []);
      this.cells.get(key).push(i);
    });
    this.over = -1;
    this.showAll();
  }

  cell(x, y) {
    return Math.floor(x * CELLS) * (CELLS + 1) + Math.floor(y * CELLS);
  }
  fit() {
    return 0.9 * Math.min(this.width / this.extent[0], this.height / this.extent[1]);
  }
  at(i) {
    return [this.points[i].x * this.scale + this.left, this.points[i].y * this.scale + this.top];
  }

  resize() {
    const { width, height } = this.canvas.getBoundingClientRect(),
      first = !this.width;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    if (!first && this.scale) {
      this.left += (width - this.width) / 2;
      this.top += (height - this.height) / 2;
    }
    Object.assign(this, { width, height, ratio });
    for (const each of [this.canvas, this.overlay]) {
      each.width = Math.round(width * ratio);
      each.height = Math.round(height * ratio);
    }
    this.image = this.pen.createImageData(this.canvas.width, this.canvas.height);
    if (this.points.length) first || !this.scale ? this.showAll() : this.restyle();
  }

  showAll() {
    if (!this.width || !this.points.length) return;
    this.scale = this.fit();
    this.left = (this.width - this.extent[0] * this.scale) / 2;
    this.top = (this.height - this.extent[1] * this.scale) / 2;
    this.restyle();
  }

  /** Makes the markers anew: after a change of size, colours or theme. */
  restyle() {
    if (!this.width) return;
    const closer = Math.min(2, Math.max(1, (this.scale / this.fit()) ** 0.35));
    this.radius = Math.max(2.6, Math.min(7, 260 / Math.sqrt(this.points.length))) * closer;
    this.stamps = new Map();
    this.redraw();
  }

  /** The marker of a point, made when it is first needed. */
  stamp(point) {
    const key = 2 * point.group + (point.text ? 1 : 0);
    if (!this.stamps.has(key)) {
      this.stamps.set(
        key,
        stampOf(Math.ceil(2 * (this.radius + 2) * this.ratio), (pen) => {
          pen.scale(this.ratio, this.ratio);
          pen.globalAlpha = 0.85;
          this.drawMarker(pen, this.radius + 2, this.radius + 2, point);
        }),
      );
    }
    return this.stamps.get(key);
  }

  drawMarker(pen, x, y, point) {
    shape(pen, x, y, this.radius, point.text);
    pen.fillStyle = this.colourOf(point.group);
    pen.fill();
    pen.lineWidth = 0.8;
    pen.strokeStyle = isDark() ? "#000a" : "#fffc";
    pen.stroke();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    if (!this.points.length || !this.scale) return;
    const start = performance.now(),
      { image, ratio, scale, left, top } = this;
    image.data.fill(0);
    for (const i of this.order) {
      const point = this.points[i];
      if (!this.shown(point)) continue;
      const stamp = this.stamp(point),
        half = stamp.side / 2;
      lay(
        stamp,
        image,
        Math.round((point.x * scale + left) * ratio - half),
        Math.round((point.y * scale + top) * ratio - half),
      );
    }
    this.pen.putImageData(image, 0, 0);
    this.drawOver();
    this.frames.push(performance.now() - start);
    if (this.frames.length > 240) this.frames.shift();
  }

  /** A ring around what is pointed at, and around the other elements of the same item. */
  drawOver() {
    const pen = this.overPen;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    if (this.over < 0) return;
    const { item } = this.points[this.over],
      [x0, y0] = this.at(this.over);
    this.points.forEach((point, i) => {
      if (point.item !== item || !this.shown(point)) return;
      const [x, y] = this.at(i);
      pen.strokeStyle = isDark() ? "#fff" : "#1e1c22";
      pen.lineWidth = 1;
      pen.globalAlpha = 0.45;
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.lineTo(x, y);
      pen.stroke();
      pen.globalAlpha = 1;
      this.drawMarker(pen, x, y, point);
      pen.strokeStyle = isDark() ? "#fff" : "#1e1c22";
      pen.lineWidth = i === this.over ? 2.5 : 1.5;
      pen.beginPath();
      pen.arc(x, y, this.radius + (i === this.over ? 5 : 3), 0, 2 * Math.PI);
      pen.stroke();
    });
  }

  point(i) {
    if (i === this.over) return;
    this.over = i;
    this.canvas.classList.toggle("over", i >= 0);
    this.drawOver();
    this.hovered(i);
  }

  nearest(px, py) {
    const reach = (this.radius + 5) / this.scale,
      x = (px - this.left) / this.scale,
      y = (py - this.top) / this.scale,
      step = 1 / CELLS;
    let best = -1,
      least = reach * reach;
    for (let cx = Math.max(0, x - reach); cx <= Math.min(1, x + reach + step); cx += step) {
      for (let cy = Math.max(0, y - reach); cy <= Math.min(1, y + reach + step); cy += step) {
        for (const i of this.cells.get(this.cell(cx, cy)) ?? []) {
          const far = (this.points[i].x - x) ** 2 + (this.points[i].y - y) ** 2;
          if (far <= least && this.shown(this.points[i])) {
            least = far;
            best = i;
          }
        }
      }
    }
    return best;
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const wanted = Math.min(80 * this.fit(), Math.max(0.5 * this.fit(), this.scale * factor));
    this.left = x - ((x - this.left) * wanted) / this.scale;
    this.top = y - ((y - this.top) * wanted) / this.scale;
    this.scale = wanted;
    this.restyle();
    this.hovered(this.over);
  }

  pan(x, y) {
    this.left += x;
    this.top += y;
    this.redraw();
  }

  /** To the next point in the direction of (x, y), or to the one in the middle if there is none yet. */
  walk(x, y) {
    const from = this.over < 0 ? [this.width / 2, this.height / 2] : this.at(this.over);
    let best = -1,
      least = Infinity;
    this.points.forEach((point, i) => {
      if (i === this.over || !this.shown(point)) return;
      const [px, py] = this.at(i),
        dx = px - from[0],
        dy = py - from[1],
        along = dx * x + dy * y,
        aside = Math.abs(dx * y - dy * x);
      const far = this.over < 0 ? Math.hypot(dx, dy) : along + 2 * aside;
      if ((this.over < 0 || along > aside) && far < least) {
        least = far;
        best = i;
      }
    });
    if (best < 0) return;
    const [px, py] = this.at(best);
    if (px < 20 || py < 20 || px > this.width - 20 || py > this.height - 20)
      this.pan(this.width / 2 - px, this.height / 2 - py);
    this.point(best);
  }
}

export function shape(pen, x, y, r, text) {
  pen.beginPath();
  if (!text) pen.arc(x, y, r * 0.95, 0, 2 * Math.PI);
  else {
    pen.moveTo(x, y - 1.15 * r);
    pen.lineTo(x + 1.1 * r, y + 0.85 * r);
    pen.lineTo(x - 1.1 * r, y + 0.85 * r);
    pen.closePath();
  }
}
