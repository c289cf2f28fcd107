"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const held = {};
  const connection = byId("connection");
  // A part that somebody types into is left alone; it is made anew once the focus has gone elsewhere.
  const busy = (place) => place.contains(document.activeElement) && /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  const typed = (place) => [...place.querySelectorAll("input:not([type=hidden]), textarea")].some((field) => field.value !== "");
  const replace = (id, markup) => {
    const place = byId(id);
    if (!place || held[id] === markup || busy(place) || typed(place)) return;
    held[id] = markup;
    const before = [...place.querySelectorAll("a, button, [tabindex]")].indexOf(document.activeElement);
    place.innerHTML = markup;
    if (before >= 0) place.querySelectorAll("a, button, [tabindex]")[before]?.focus({ preventScroll: true });
  };
  const look = async () => {
    try {
      const answer = await fetch("state", { credentials: "same-origin" });
      if (!answer.ok) throw new Error(answer.status);
      const state = await answer.json();
      connection.hidden = true;
      for (const [id, markup] of Object.entries(state.parts)) replace(id, markup);
      const waiting = state.waiting ? `(${state.waiting}) ` : "";
      document.title = waiting + document.querySelector("h1").textContent;
    } catch {
      connection.textContent = "The console does not answer: this is what came last. Is `offbeat party console` still running?";
      connection.hidden = false;
    }
    setTimeout(look, 1500);
  };
  if (connection) look();
})();
