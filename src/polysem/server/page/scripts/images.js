// Pictures of the index. A browser sends no token with <img>, so where one is needed they are fetched and kept as blobs.
import { hasToken, request } from "./api.js";
import { make } from "./dom.js";

const MOST = 400;
const kept = new Map(); // address → promise of an object URL, the oldest first

const near = new IntersectionObserver((seen) => {
  for (const each of seen) {
    if (!each.isIntersecting) continue;
    near.unobserve(each.target);
    fetched(each.target.dataset.address).then((url) => { each.target.src = url; }, () => each.target.dispatchEvent(new Event("error")));
  }
}, { rootMargin: "400px" });

function fetched(address) {
  if (!kept.has(address)) {
    kept.set(address, request(address).then((response) => response.blob()).then(URL.createObjectURL));
    if (kept.size > MOST) {
      const [oldest, url] = kept.entries().next().value;
      kept.delete(oldest);
      url.then(URL.revokeObjectURL, () => {});
    }
  }
  return kept.get(address);
}

/** An <img> of a picture of the index; size is its longer side in pixels. What cannot be shown is said. */
export function picture(address, { size = null, alt = "", lazy = true } = {}) {
  const full = size === null ? address : `${address}${address.includes("?") ? "&" : "?"}size=${size}`;
  const shown = make("img", { alt, decoding: "async", draggable: "false" });
  shown.addEventListener("error", () => shown.replaceWith(make("span", { class: "lost" }, alt || "no picture")), { once: true });
  if (hasToken()) {
    shown.dataset.address = full;
    near.observe(shown);
  } else {
    if (lazy) shown.loading = "lazy"; // before src: afterwards the picture is already being fetched
    shown.src = full;
  }
  return shown;
}
