// Questions that stand before what cannot be undone, and forms that need a word.

import { button, field, h } from "./dom.js";

/** Asks a question. True where the answer is the button with that text. */
export function confirmed(title, text, yes) {
  return asked(title, [h("p", {}, text)], yes, () => true, "danger");
}

/** Asks for a text; null where there is none. */
export function askText(title, label, yes, { value = "", hint = null, pattern = null } = {}) {
  const input = h("input", { value, required: true, pattern, maxlength: 100, autocomplete: "off", spellcheck: "false" });
  return asked(title, [field(label, input, hint)], yes, () => input.value.trim() || null, "primary");
}

/** Shows something, until it is closed. */
export function shown(title, content) {
  return asked(title, content, null, () => null, "", "wide");
}

/** Closes what stands open, as if the answer were no: its view is gone. */
export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
}

function asked(title, content, yes, answer, kind, width = "") {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog", { class: width, "aria-label": title },
      h(
        "form", { method: "dialog" },
        h("h2", {}, title),
        content,
        h(
          "div", { class: "buttons" },
          yes && h("button", { type: "submit", class: kind }, yes),
          button(yes ? "Cancel" : "Close", () => dialog.close(), yes ? {} : { autofocus: true }),
        ),
      ),
    );
    let result = null;
    dialog.querySelector("form").addEventListener("submit", () => { result = answer(); });
    dialog.addEventListener("close", () => { dialog.remove(); resolve(result); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
