"use strict";
// Draws the map on a canvas. Markers are small pictures made once for each colour and shape: copying them is what keeps
// twenty thousand of them smooth.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const count = data.x.length, size = 30000;
  const canvas = document.getElementById("map"), context = canvas.getContext("2d");
  const stage = document.getElementById("stage"), tip = document.getElementById("tip");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isText = data.item.map(item => data.items[item][1] === "text" ? 1 : 0);
  // Drawn in an order of its own, the same every time: the last of a set would else cover all the others.
  const order = Array.from({ length: count }, (_, i) => i).sort((a, b) => (a * 7919 % 10007) - (b * 7919 % 10007) || a - b);
  const partners = new Map();
  data.items.forEach((item, place) => {
    if (!partners.has(item[3])) partners.set(item[3], []);
    partners.get(item[3]).push(place);
  });

  let colouring = data.colourings.find(each => each.name === data.colour) || data.colourings[0];
  let hidden = new Set(), hiddenSides = new Set(), showLines = true;
  let scale = 1, left = 0, top = 0;        // screen = place * scale + offset
  let hovered = -1, held = -1, lit = null, found = null;
  let width = 0, height = 0, sprites = [], radius = 4, waiting = false, stale = true;

  const shown = i => !hidden.has(colouring.of[i]) && !hiddenSides.has(isText[i]);
  const colour = i => { const all = dark.matches ? data.dark : data.light; return all[i % all.length]; };

  function sprite(fill, text, r, ratio) {
    const made = document.createElement("canvas"), side = Math.ceil(2 * (r + 2) * ratio);
    made.width = made.height = side;
    const pen = made.getContext("2d");
    pen.scale(ratio, ratio);
    shape(pen, r + 2, r + 2, r, text);
    pen.fillStyle = fill; pen.fill();
    pen.lineWidth = 0.7; pen.strokeStyle = dark.matches ? "#000a" : "#fffc"; pen.stroke();
    return made;
  }

  function shape(pen, x, y, r, text) {
    pen.beginPath();
    if (text) { const h = 1.15 * r; pen.moveTo(x, y - h); pen.lineTo(x + h, y + 0.85 * h); pen.lineTo(x - h, y + 0.85 * h); pen.closePath(); }
    else pen.arc(x, y, r, 0, 2 * Math.PI);
  }

  function measure() { width = stage.clientWidth; height = stage.clientHeight; }

  // Empties the canvas, so only just before it is drawn.
  function prepare() {
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio; canvas.height = height * ratio;
    radius = Math.max(2.4, Math.min(6, 240 / Math.sqrt(count))) * Math.min(2, Math.max(1, Math.pow(scale / fit(), 0.35)));
    sprites = [0, 1].map(text => colouring.names.map((_, i) => sprite(colour(i), text, radius, ratio)));
  }

  const extent = { x: Math.max(1, ...bounds(data.x)), y: Math.max(1, ...bounds(data.y)) };
  function bounds(values) { let most = 0; for (const v of values) if (v > most) most = v; return [most]; }
  function fit() { return 0.92 * Math.min(width / extent.x, height / extent.y); }

  function showAll() {
    scale = fit();
    left = (width - extent.x * scale) / 2; top = (height - extent.y * scale) / 2;
    redraw(true);
  }

  function redraw(sizes) {
    stale = stale || Boolean(sizes);
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      if (stale) prepare();
      stale = false;
      draw();
    });
  }

  function draw() {
    const ratio = devicePixelRatio || 1, half = radius + 2, side = 2 * half;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    if (showLines && data.lines.length) {
      context.beginPath();
      for (const [a, b] of data.lines) if (shown(a) && shown(b)) {
        context.moveTo(data.x[a] * scale + left, data.y[a] * scale + top);
        context.lineTo(data.x[b] * scale + left, data.y[b] * scale + top);
      }
      context.strokeStyle = dark.matches ? "#ffffff30" : "#00000028"; context.lineWidth = 0.8; context.stroke();
    }
    const bright = [];
    context.globalAlpha = lit || found ? 0.12 : 0.85;
    for (const i of order) {
      const x = data.x[i] * scale + left, y = data.y[i] * scale + top;
      if (x < -half || y < -half || x > width + half || y > height + half || !shown(i)) continue;
      if ((lit && lit.has(data.item[i])) || (!lit && found && found.has(data.item[i]))) { bright.push(i); continue; }
      context.drawImage(sprites[isText[i]][colouring.of[i]], x - half, y - half, side, side);
    }
    context.globalAlpha = 1;
    for (const i of bright) {
      const x = data.x[i] * scale + left, y = data.y[i] * scale + top, big = held >= 0 && data.item[i] === data.item[held] ? 1.6 : 1.2;
      context.drawImage(sprites[isText[i]][colouring.of[i]], x - half * big, y - half * big, side * big, side * big);
    }
    const at = hovered >= 0 ? hovered : held;
    if (at >= 0) {
      context.beginPath();
      context.arc(data.x[at] * scale + left, data.y[at] * scale + top, radius + 5, 0, 2 * Math.PI);
      context.strokeStyle = dark.matches ? "#fff" : "#000"; context.lineWidth = 2; context.stroke();
    }
  }

  // Cells of a coarse grid, to find the marker under the pointer without looking at all of them.
  const cells = 128, grid = new Map();
  const cell = (x, y) => Math.floor(x / size * cells) * (cells + 1) + Math.floor(y / size * cells);
  for (let i = 0; i < count; i++) {
    const key = cell(data.x[i], data.y[i]);
    if (!grid.has(key)) grid.set(key, []);
    grid.get(key).push(i);
  }

  function nearest(px, py) {
    const reach = (radius + 4) / scale, x = (px - left) / scale, y = (py - top) / scale;
    let best = -1, least = reach * reach;
    const step = size / cells;
    for (let cx = Math.max(0, x - reach); cx <= Math.min(size, x + reach + step); cx += step)
      for (let cy = Math.max(0, y - reach); cy <= Math.min(size, y + reach + step); cy += step)
        for (const i of grid.get(cell(Math.min(cx, size), Math.min(cy, size))) || []) {
          const far = (data.x[i] - x) ** 2 + (data.y[i] - y) ** 2;
          if (far <= least && shown(i)) { least = far; best = i; }
        }
    return best;
  }

  function tell(i) {
    tip.hidden = i < 0;
    if (i < 0) return;
    const [id, side, text] = data.items[data.item[i]];
    tip.replaceChildren();
    const head = document.createElement("b"), body = document.createElement("span");
    head.textContent = text;
    body.textContent = `${side} ${id}, element ${data.slot[i] + 1}` +
      (colouring.name === "label" ? `, ${colouring.names[colouring.of[i]]}` : "");
    tip.append(head, body);
    const x = data.x[i] * scale + left, y = data.y[i] * scale + top;
    tip.style.left = `${Math.max(4, Math.min(x + 14, width - tip.offsetWidth - 6))}px`;
    tip.style.top = `${y + 14 + tip.offsetHeight > height ? Math.max(4, y - tip.offsetHeight - 12) : y + 14}px`;
  }

  function hold(i) {
    held = i;
    lit = i < 0 ? null : new Set(partners.get(data.items[data.item[i]][3]));
    tell(i);
    redraw();
  }

  function zoom(factor, x = width / 2, y = height / 2) {
    const wanted = Math.min(200 * fit(), Math.max(0.3 * fit(), scale * factor));
    left = x - (x - left) * wanted / scale; top = y - (y - top) * wanted / scale;
    scale = wanted;
    redraw(true);
    tell(hovered >= 0 ? hovered : held);
  }

  // ------------------------------------------------------------------------------------------------ pointer and keys
  const pointers = new Map();
  let moved = 0, spread = 0;
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, [event.offsetX, event.offsetY]); moved = 0; spread = 0;
  });
  canvas.addEventListener("pointermove", event => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      const at = nearest(event.offsetX, event.offsetY);
      if (at !== hovered) { hovered = at; tell(at >= 0 ? at : held); redraw(); }
      return;
    }
    pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    const [a, b] = [...pointers.values()];
    if (b) {
      const now = Math.hypot(a[0] - b[0], a[1] - b[1]);
      if (spread) zoom(now / spread, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
      spread = now; moved = 9;
    } else {
      left += event.offsetX - before[0]; top += event.offsetY - before[1];
      moved += Math.abs(event.offsetX - before[0]) + Math.abs(event.offsetY - before[1]);
      if (moved > 4) { hovered = -1; tell(held); redraw(); }
    }
  });
  const release = event => {
    if (pointers.delete(event.pointerId) && event.type === "pointerup" && moved <= 4)
      hold(nearest(event.offsetX, event.offsetY));
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { hovered = -1; tell(held); redraw(); });
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.offsetX, event.offsetY);
  }, { passive: false });

  function step(by) {
    let i = held;
    for (let tries = 0; tries < count; tries++) {
      i = (i + by + count) % count;
      if (shown(i) && (!found || found.has(data.item[i]))) break;
    }
    left += width / 2 - (data.x[i] * scale + left); top += height / 2 - (data.y[i] * scale + top);
    hold(i);
  }
  canvas.addEventListener("keydown", event => {
    const far = 60, acts = {
      ArrowLeft: () => { left += far; }, ArrowRight: () => { left -= far; },
      ArrowUp: () => { top += far; }, ArrowDown: () => { top -= far; },
      "+": () => zoom(1.3), "=": () => zoom(1.3), "-": () => zoom(1 / 1.3), 0: showAll,
      n: () => step(1), p: () => step(-1), Enter: () => { if (hovered >= 0) hold(hovered); }, Escape: () => hold(-1),
    };
    const act = acts[event.key] || acts[event.key.toLowerCase()];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act(); tell(held); redraw();
  });

  // ------------------------------------------------------------------------------------------------ the panel
  function entry(name, mark, number, isOn, toggle) {
    const button = document.createElement("button");
    button.className = "entry"; button.type = "button";
    button.innerHTML = `<svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true">${mark}</svg>`;
    button.append(name);
    const small = document.createElement("small");
    small.textContent = number.toLocaleString("en"); button.append(small);
    button.setAttribute("aria-pressed", isOn);
    button.addEventListener("click", () => { button.setAttribute("aria-pressed", toggle()); redraw(); });
    return button;
  }
  function group(title, entries) {
    const set = document.createElement("fieldset"), head = document.createElement("legend");
    head.textContent = title; set.append(head, ...entries);
    return set;
  }
  const flip = (set, value) => { if (!set.delete(value)) set.add(value); return !set.has(value); };
  const tally = (values, value) => values.reduce((sum, each) => sum + (each === value), 0);
  const circle = fill => `<circle cx="7" cy="7" r="5" fill="${fill}"/>`;
  const triangle = fill => `<path d="M7 1 L13 12 L1 12 Z" fill="${fill}"/>`;
  const square = fill => `<rect x="1.5" y="1.5" width="11" height="11" rx="2" fill="${fill}"/>`;
  function legend() {
    const parts = [];
    if (data.colourings.length > 1) {
      const choose = document.createElement("select");
      choose.setAttribute("aria-label", "Colours tell");
      for (const each of data.colourings) choose.add(new Option(`Colours tell the ${each.name}`, each.name, false, each === colouring));
      choose.style.cssText = "font: inherit; width: 100%; margin-bottom: .6rem";
      choose.addEventListener("change", () => {
        colouring = data.colourings.find(each => each.name === choose.value);
        hidden = new Set(); legend(); redraw(true);
      });
      parts.push(choose);
    }
    parts.push(group(colouring.name === "slot" ? "Element of the set" : "Label", colouring.names.map((name, i) =>
      entry(name, square(colour(i)), tally(colouring.of, i), !hidden.has(i), () => flip(hidden, i)))));
    parts.push(group("Modality", [0, 1].filter(side => isText.includes(side)).map(side =>
      entry(side ? "texts" : "images", (side ? triangle : circle)("currentColor"), tally(isText, side),
        !hiddenSides.has(side), () => flip(hiddenSides, side)))));
    if (data.lines.length) parts.push(group("Pairs", [entry("lines from captions to their images",
      `<path d="M1 12 L13 2" stroke="currentColor" stroke-width="1.5"/>`, data.lines.length, showLines,
      () => (showLines = !showLines))]));
    document.getElementById("legend").replaceChildren(...parts);
  }

  document.getElementById("find").addEventListener("input", event => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = words.length ? new Set(data.items.flatMap((item, place) =>
      words.every(word => `${item[0]} ${item[2]}`.toLowerCase().includes(word)) ? [place] : [])) : null;
    redraw();
  });
  document.getElementById("closer").addEventListener("click", () => zoom(1.4));
  document.getElementById("farther").addEventListener("click", () => zoom(1 / 1.4));
  document.getElementById("all").addEventListener("click", showAll);
  dark.addEventListener("change", () => { legend(); redraw(true); });
  new ResizeObserver(() => { const first = !width; measure(); if (first) showAll(); else redraw(true); }).observe(stage);
  legend(); measure(); showAll();
})();
