// Entering the token that a server off this machine, or one that is written to, asks for.
import { hasToken, setToken } from "./api.js";
import { byId, icon, make } from "./dom.js";

/** Opens the dialog; entered() is called once a token was given. */
export function askForToken(entered = () => {}) {
  const dialog = byId("token");
  const field = make("input", { type: "password", class: "entry", autocomplete: "off", required: true, id: "token-field" });
  const done = (given) => {
    setToken(given);
    dialog.close();
    showToken();
    entered();
  };
  const form = make("form", { onsubmit: (event) => { event.preventDefault(); done(field.value.trim()); } },
    make("label", { class: "field", for: "token-field" }, "Token", field),
    make("div", { class: "row" },
      make("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel"),
      hasToken() && make("button", { type: "button", class: "button", onclick: () => done(null) }, "Forget the token"),
      make("button", { type: "submit", class: "button main" }, "Use it")));
  dialog.replaceChildren(
    make("h2", { id: "token-title" }, "Token"),
    make("p", { class: "small" }, "It is kept in this tab alone, and sent to this server alone."),
    form);
  dialog.showModal();
}

/** The key in the top bar: there while a token is in use. */
export function showToken() {
  const button = byId("token-button");
  button.hidden = !hasToken();
  if (!button.firstChild) {
    button.append(icon("key"));
    button.setAttribute("aria-label", "Change or forget the token");
    button.title = "Change or forget the token";
    button.addEventListener("click", () => askForToken(() => location.reload()));
  }
}
