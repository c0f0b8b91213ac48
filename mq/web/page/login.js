// The form for who mq does not know.

import { logIn } from "./api.js";
import { field, h } from "./dom.js";

/** The form. `done` is called once mq knows the user. */
export function loginView(done) {
  const name = h("input", { name: "name", autocomplete: "username", required: true });
  const secret = h("input", { name: "secret", type: "password", autocomplete: "current-password", required: true });
  const problem = h("p", { class: "problem", role: "alert" });
  const form = h(
    "form", { class: "card login", on: { submit: send } },
    h("h1", {}, "Log in to mq"),
    field("User name", name),
    field("Password or token", secret),
    problem,
    h("button", { type: "submit", class: "primary" }, "Log in"),
  );

  async function send(event) {
    event.preventDefault();
    problem.textContent = "";
    try {
      await logIn(name.value, secret.value);
    } catch (error) {
      problem.textContent = error.message;
      secret.value = "";
      secret.focus();
      return;
    }
    done();
  }

  queueMicrotask(() => name.focus());
  return form;
}
