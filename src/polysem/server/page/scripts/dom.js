// Making elements, and saying things to people who do not see them.
const SVG = "http://www.w3.org/2000/svg";

/** make("p", { class: "note", onclick: act }, "text", child). Attributes that are null or false are left out. */
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, each] of Object.entries(value)) made.style.setProperty(`--${key}`, each);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function icon(name) {
  const drawn = document.createElementNS(SVG, "svg"),
    use = document.createElementNS(SVG, "use");
  drawn.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `/static/icons.svg#${name}`);
  drawn.append(use);
  return drawn;
}

/** A small drawn mark: shape is "circle", "triangle" or "square". */
export function mark(shape, fill) {
  const drawn = document.createElementNS(SVG, "svg"),
    path = document.createElementNS(SVG, "path");
  drawn.setAttribute("viewBox", "0 0 14 14");
  drawn.setAttribute("aria-hidden", "true");
  path.setAttribute(
    "d",
    {
      circle: "M7 2a5 5 0 1 0 0 10a5 5 0 1 0 0-10Z",
      triangle: "M7 1.5 13 12 1 12Z",
      square: "M2 2H12V12H2Z",
    }[shape],
  );
  path.setAttribute("fill", fill);
  drawn.append(path);
  return drawn;
}

/** Read out by screen readers. */
export function announce(text) {
  document.getElementById("live").textContent = text;
}

export const byId = (id) => document.getElementById(id);
export const count = (number) => number.toLocaleString("en");
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;
/** A probability in words: 83 % match. */
export const chance = (share) => {
  const percent = 100 * share;
  return `${percent >= 1 ? percent.toFixed(0) : percent >= 0.01 ? String(Number(percent.toPrecision(2))) : "<0.01"} % match`;
};
export const score = (number) => (Number.isFinite(number) ? number.toFixed(3).replace("-", "−") : "–");
export const typing = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");

export function bytes(number) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, number)) / 3));
  return `${(number / 1000 ** step).toFixed(step && number / 1000 ** step < 10 ? 1 : 0)} ${units[step]}`;
}
