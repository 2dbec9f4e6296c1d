// Videos of the index: what stands for one, and playing it from the moment that was found.
import { icon, make } from "./dom.js";
import { picture } from "./images.js";

/** "12:30", or with tenths "0:04.5". */
export function clock(seconds, digits = 0) {
  const whole = Number(seconds.toFixed(digits));
  const rest = (whole % 60).toFixed(digits).padStart(digits ? 3 + digits : 2, "0");
  const hours = Math.floor(whole / 3600),
    minutes = Math.floor((whole % 3600) / 60);
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/** The frame at the moment, with the time on it. */
export function poster(result, address, alt) {
  return [
    picture(address, { size: 480, alt, at: result.moment?.time }),
    result.video && make("span", { class: "play", "aria-hidden": "true" }, icon("play")),
    result.moment && make("span", { class: "badge" }, result.moment.text),
  ];
}

/** A <video> that waits at the moment. It is silent until its reader turns the sound on. */
export function player(result, { name, plays = false }) {
  const start = result.moment?.start ?? 0;
  const shown = make("video", {
    controls: true,
    playsinline: true,
    preload: "metadata",
    "aria-label": `${name}${result.moment ? `, from ${result.moment.text}` : ""}`,
  });
  shown.muted = true; // an attribute would only hold for the first time
  shown.addEventListener(
    "error",
    () => shown.replaceWith(make("span", { class: "lost", role: "status" }, "This browser cannot play the video.")),
    { once: true },
  );
  // A fragment moves it there before the first frame is drawn.
  shown.src = `${result.video}#t=${start}`;
  if (plays) shown.play().catch(() => {}); // refused, or put away before it began: its controls are there
  return shown;
}

/** Turns a card's picture into a player and back. `Escape` stops it. Only one plays at a time. */
export function startPlaying() {
  let current = null;

  function stop({ focus = false } = {}) {
    if (!current) return;
    const { frame, button } = current;
    current = null;
    frame.querySelector("video")?.pause();
    frame.querySelector("video")?.removeAttribute("src"); // lets go of the connection
    frame.replaceWith(button);
    if (focus) button.focus();
  }

  function play(result, button, name) {
    stop();
    const shown = player(result, { name, plays: true });
    shown.dataset.main = "";
    const frame = make("div", { class: "shot playing" }, shown);
    frame.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      stop({ focus: true });
    });
    button.replaceWith(frame);
    current = { frame, button };
    shown.focus();
  }

  return { play, stop };
}
