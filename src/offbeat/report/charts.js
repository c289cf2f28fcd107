"use strict";
// Line charts, also those that come later: values are read off under the pointer, or with the arrow keys.
const reading = (() => {
  const root = document.documentElement;
  const hint = document.createElement("div");
  hint.id = "hint";
  hint.setAttribute("role", "status");
  document.body.append(hint);
  let chosen = -1;
  const marksOf = (chart) => [...chart.querySelectorAll(".marks circle")];
  const choose = (chart, index) => {
    for (const mark of document.querySelectorAll("svg.lines circle.on")) mark.classList.remove("on");
    const mark = chart && marksOf(chart)[index];
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
  const chartAt = (event) => event.target.closest?.("svg.lines");
  const stop = () => { if (chosen >= 0) choose(null, -1); };
  addEventListener("pointermove", (event) => {
    const chart = chartAt(event);
    if (!chart) return stop();
    let nearest = -1, best = Infinity;
    marksOf(chart).forEach((mark, index) => {
      const box = mark.getBoundingClientRect();
      const away = Math.hypot(box.x + box.width / 2 - event.clientX, (box.y + box.height / 2 - event.clientY) / 3);
      if (away < best) { best = away; nearest = index; }
    });
    choose(chart, nearest);
  });
  root.addEventListener("pointerleave", stop);
  addEventListener("focusout", stop);
  addEventListener("keydown", (event) => {
    const chart = chartAt(event), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!chart || !step) return;
    event.preventDefault();
    choose(chart, Math.min(marksOf(chart).length - 1, Math.max(0, chosen + step)));
  });
  return { choose, stop, place: () => chosen };
})();
