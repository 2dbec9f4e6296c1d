// Light, dark, or as the system has it.
import { icon } from "./dom.js";

const NEXT = { system: "light", light: "dark", dark: "system" };
const SAID = { system: "as the system has it", light: "light", dark: "dark" };
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export const chosen = () => document.documentElement.dataset.theme ?? "system";
export const isDark = () => (chosen() === "system" ? system.matches : chosen() === "dark");

/** Calls back whenever the page turns light or dark; for what is drawn on a canvas. */
export function onTheme(listener) {
  listeners.add(listener);
}

export function startTheme(button) {
  const show = () => {
    button.replaceChildren(icon(chosen()));
    button.title = `Colours: ${SAID[chosen()]}`;
    button.setAttribute("aria-label", `Colours: ${SAID[chosen()]}. Change to ${SAID[NEXT[chosen()]]}`);
    for (const listener of listeners) listener();
  };
  button.addEventListener("click", () => {
    const next = NEXT[chosen()];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("polysem-theme", next);
    } catch {
      /* it holds until the page is left */
    }
    show();
  });
  system.addEventListener("change", show);
  show();
}
