"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;

  // -- a chart's values, under the pointer or with the arrow keys ------------------------------------------------------
  const hint = document.createElement("div");
  hint.id = "hint";
  hint.setAttribute("role", "status");
  document.body.append(hint);
  const charts = byId("charts");
  let chosen = -1;
  const choose = (chart, index) => {
    for (const mark of charts.querySelectorAll("circle.on")) mark.classList.remove("on");
    const mark = chart?.querySelectorAll(".marks circle")[index];
    chosen = mark ? index : -1;
    hint.style.display = mark ? "block" : "none";
    if (!mark) return;
    mark.classList.add("on");
    hint.textContent = mark.dataset.label;
    const box = mark.getBoundingClientRect();
    const left = Math.min(box.right + scrollX + 10, scrollX + root.clientWidth - hint.offsetWidth - 8);
    hint.style.left = Math.max(8, left) + "px";
    hint.style.top = box.top + scrollY - hint.offsetHeight - 6 + "px";
  };
  charts.addEventListener("pointermove", (event) => {
    const chart = event.target.closest("svg.lines");
    let nearest = -1, best = Infinity;
    chart?.querySelectorAll(".marks circle").forEach((mark, index) => {
      const box = mark.getBoundingClientRect();
      const away = Math.hypot(box.x + box.width / 2 - event.clientX, (box.y + box.height / 2 - event.clientY) / 3);
      if (away < best) { best = away; nearest = index; }
    });
    choose(chart, nearest);
  });
  charts.addEventListener("pointerleave", () => choose(null, -1));
  charts.addEventListener("focusout", () => choose(null, -1));
  charts.addEventListener("keydown", (event) => {
    const chart = event.target.closest("svg.lines"), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!chart || !step) return;
    event.preventDefault();
    const last = chart.querySelectorAll(".marks circle").length - 1;
    choose(chart, Math.min(last, Math.max(0, chosen + step)));
  });

  // -- what is new -------------------------------------------------------------------------------------------------------
  const held = {};
  let newsAt = null, over = false;
  const replace = (id, markup) => {
    const place = byId(id);
    if (!place || held[id] === markup) return;
    held[id] = markup;
    const before = [...place.querySelectorAll("[tabindex]")].indexOf(document.activeElement), at = chosen;
    place.innerHTML = markup;
    if (before < 0) { if (place === charts) choose(null, -1); return; }
    const again = place.querySelectorAll("[tabindex]")[before];
    again?.focus({ preventScroll: true });
    if (place === charts && at >= 0) choose(again, at);
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
