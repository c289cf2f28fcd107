"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const charts = byId("charts"), held = {};
  let newsAt = null, over = false;
  const replace = (id, markup) => {
    const place = byId(id);
    if (!place || held[id] === markup) return;
    held[id] = markup;
    const before = [...place.querySelectorAll("[tabindex]")].indexOf(document.activeElement), at = reading.place();
    place.innerHTML = markup;
    if (before < 0) { if (place === charts) reading.stop(); return; }
    const again = place.querySelectorAll("[tabindex]")[before];
    again?.focus({ preventScroll: true });
    if (place === charts && at >= 0) reading.choose(again, at);
  };
  const tellAge = () => {
    const place = byId("news"), seconds = newsAt === null ? 0 : Math.max(0, Math.round(Date.now() / 1000 - newsAt));
    if (place) place.textContent = newsAt === null || over ? "" : seconds < 2 ? "news just now" : `last news ${seconds} s ago`;
  };
  const connection = byId("connection");
  const source = new EventSource("events");
  source.addEventListener("message", (event) => {
    const state = JSON.parse(event.data);
    connection.hidden = true;
    newsAt = state.news_s;
    over = state.over;
    document.title = document.querySelector("h1").textContent = state.title;
    for (const [id, markup] of Object.entries(state.parts)) replace(id, markup);
    tellAge();
  });
  source.addEventListener("error", () => {
    connection.textContent = "The connection is lost: this is what came last. Is `offbeat watch` still running?";
    connection.hidden = false;
  });
  addEventListener("pagehide", () => source.close());
  setInterval(tellAge, 1000);
})();
