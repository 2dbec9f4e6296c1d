// Entering the token that a server off this machine, or one that is written to, asks for.
import { hasToken, session, setToken } from "./api.js";
import { byId, icon, make } from "./dom.js";

/** Opens the dialog; entered() is called once a token was taken. */
export function askForToken(entered = () => {}) {
  const dialog = byId("token"),
    said = make("p", { class: "small", role: "alert" });
  const field = make("input", {
    type: "password",
    class: "entry",
    autocomplete: "off",
    required: true,
    id: "token-field",
  });

  async function tryIt(given) {
    setToken(given);
    try {
      if (given) await session();
    } catch (error) {
      setToken(null);
      said.textContent =
        error.status === 401 ? "The server does not know this token." : error.message || "The server does not answer.";
      field.select();
      return;
    }
    dialog.close();
    showToken();
    entered();
  }

  dialog.replaceChildren(
    make("h2", { id: "token-title" }, "Token"),
    make("p", { class: "small" }, "It is kept in this tab alone, and sent to this server alone."),
    make(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          tryIt(field.value.trim());
        },
      },
      make("label", { class: "field", for: "token-field" }, "Token", field),
      said,
      make(
        "div",
        { class: "row" },
        make("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel"),
        hasToken() &&
          make("button", { type: "button", class: "button", onclick: () => tryIt(null) }, "Forget the token"),
        make("button", { type: "submit", class: "button main" }, "Use it"),
      ),
    ),
  );
  if (!dialog.open) dialog.showModal();
  field.focus();
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
