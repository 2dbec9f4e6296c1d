// Pictures of the index.
import { make } from "./dom.js";

/** An <img> of a picture of the index; size is its longer side in pixels, at the second of a video. What cannot be
 *  shown is said. */
export function picture(address, { size = null, at = null, alt = "", lazy = true } = {}) {
  const shown = make("img", { alt, decoding: "async", draggable: "false" });
  shown.addEventListener("error", () => shown.replaceWith(make("span", { class: "lost" }, alt || "no picture")), {
    once: true,
  });
  if (lazy) shown.loading = "lazy"; // before src: afterwards the picture is already being fetched
  const asked = [size !== null && `size=${size}`, typeof at === "number" && `at=${at.toFixed(3)}`].filter(Boolean);
  shown.src = asked.length ? `${address}${address.includes("?") ? "&" : "?"}${asked.join("&")}` : address;
  return shown;
}
