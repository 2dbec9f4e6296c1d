// The frames of a video one after the other: what an element takes from each, and what each scores alone.
import { make, score } from "./dom.js";
import { picture } from "./images.js";
import { clock } from "./playing.js";

const MOST = 48; // frames shown; of more, so many at even distances

/** told: an explanation with a film. address: of its frames, or null. seek(seconds): shows that time, or null.
 *  Returns { section, choose(values) }: choose shows what an element takes from each frame. */
export function film(told, address, seek) {
  const { times, scores, adds, moment } = told.film;
  const shown = spread(scores.length);
  const low = Math.min(...scores),
    high = Math.max(...scores);
  const cells = shown.map((i) => {
    const name = times ? clock(times[i], 1) : `frame ${i + 1}`;
    const said = [
      `alone ${score(scores[i])}`,
      adds && `adds ${score(adds[i])}`,
      i === moment.frame ? "best" : i >= moment.first && i <= moment.last ? "in the moment" : null,
    ].filter(Boolean);
    const parts = [
      address && times ? picture(address, { size: 160, at: times[i], alt: "" }) : null,
      make("span", { class: "frame-time" }, name),
      make("span", { class: "frame-bar weight", "aria-hidden": "true" }, make("i")),
      make(
        "span",
        { class: "frame-bar", "aria-hidden": "true", vars: { share: high > low ? (scores[i] - low) / (high - low) : 1 } },
        make("i"),
      ),
      make("span", { class: "frame-said" }, said.join(" · ")),
    ];
    const inside = i >= moment.first && i <= moment.last;
    const holds =
      seek && times
        ? make("button", { type: "button", onclick: () => seek(times[i]), title: `Show ${name}` }, ...parts)
        : make("div", {}, ...parts);
    return make(
      "li",
      { class: `frame${inside ? " in" : ""}${i === moment.frame ? " best" : ""}`, "data-frame": i },
      holds,
    );
  });
  const section = make(
    "section",
    { class: "film" },
    make("h3", {}, `Best from ${moment.text}`),
    make(
      "ol",
      { class: "strip", tabindex: "0", "aria-label": "Frames of the video, in order" },
      cells,
    ),
    make(
      "p",
      { class: "small" },
      make("i", { class: "key weight" }),
      " what the chosen element takes from the frame ",
      make("i", { class: "key" }),
      " the frame's own score, from its lowest to its highest",
    ),
  );

  function choose(values) {
    const most = Math.max(1e-9, ...values);
    cells.forEach((cell, n) => {
      cell.querySelector(".weight").style.setProperty("--share", Math.max(0, values[shown[n]] / most));
    });
  }
  // Once it is on the page, the best frame is in sight.
  requestAnimationFrame(() => {
    const strip = section.querySelector(".strip"),
      best = section.querySelector(".best");
    if (best) strip.scrollLeft = best.offsetLeft - strip.offsetLeft - (strip.clientWidth - best.clientWidth) / 2;
  });
  return { section, choose };
}

/** What an element takes from each frame, as bars. */
export function drawBars(canvas, values, most) {
  canvas.width = 320;
  canvas.height = 180;
  const pen = canvas.getContext("2d"),
    wide = canvas.width / values.length;
  pen.fillStyle = getComputedStyle(canvas).color;
  values.forEach((value, i) => {
    const high = Math.max(1, (Math.max(0, value) / Math.max(most, 1e-9)) * (canvas.height - 24));
    pen.fillRect((i + 0.1) * wide, canvas.height - high, Math.max(1, 0.8 * wide), high);
  });
}

function spread(count) {
  const kept = Math.min(count, MOST);
  return Array.from({ length: kept }, (_, i) => Math.floor(((i + 0.5) * count) / kept));
}
