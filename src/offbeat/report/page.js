"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const MOST_ARROWS = 900;
  const byId = (id) => document.getElementById(id);

  // -- the message timeline ---------------------------------------------------------------------------------------------
  const source = byId("timeline-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const chart = byId("timeline"), arrows = byId("timeline-arrows"), ticks = byId("timeline-ticks");
  const party = byId("timeline-party"), kind = byId("timeline-kind"), status = byId("timeline-status");
  const frame = byId("timeline-window"), overview = byId("timeline-overview");
  const bottom = chart.viewBox.baseVal.height - 30, shortest = data.end / 1e7;
  let view = [...data.view], shown = [], chosen = -1;

  const x = (time) => data.left + (time - view[0]) / (view[1] - view[0]) * (data.right - data.left);
  const node = (name, attributes, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const seconds = (value) => {
    if (value === 0) return "0 s";
    if (value < 1e-3) return Number((value * 1e6).toPrecision(4)) + " µs";
    if (value < 1) return Number((value * 1e3).toPrecision(4)) + " ms";
    return Number(value.toPrecision(5)) + " s";
  };
  const describe = ([sent, received, from, to, what]) =>
    `${data.kinds[what]}: ${data.parties[from]} → ${data.parties[to]}, sent ${seconds(sent)}, ` +
    (received === null ? "lost" : `arrived ${seconds(received)} (${seconds(received - sent)} on its way)`);

  const matches = ([sent, received, from, to, what]) =>
    sent <= view[1] && (received === null ? sent >= view[0] : received >= view[0]) &&
    (!party.value || data.parties[from] === party.value || data.parties[to] === party.value) &&
    (!kind.value || data.kinds[what] === kind.value);

  // A line is cut at the edges of the view, so that a message in flight there still points the right way.
  const path = ([sent, received, from, to]) => {
    const [y1, y2] = [data.lanes[from], data.lanes[to]];
    if (received === null) return `M${x(sent).toFixed(1)} ${y1}V${(y1 + y2) / 2}m-3.5 -3.5l7 7m0 -7l-7 7`;
    const at = (time) => received > sent ? y1 + (y2 - y1) * (time - sent) / (received - sent) : y2;
    const start = Math.max(sent, view[0]), end = Math.min(received, view[1]);
    return `M${x(start).toFixed(1)} ${(start > sent ? at(start) : y1).toFixed(1)}` +
      `L${x(end).toFixed(1)} ${(end < received ? at(end) : y2).toFixed(1)}`;
  };
  const arrow = (message) => {
    const tone = data.tones[message[4]];
    const made = node("path", { d: path(message), class: data.strokes[message[4]] });
    if (message[1] !== null && message[1] <= view[1]) made.setAttribute("marker-end", `url(#head${tone})`);
    made.dataset.from = data.parties[message[2]];
    made.dataset.to = data.parties[message[3]];
    made.dataset.kind = data.kinds[message[4]];
    made.append(node("title", {}, describe(message)));
    return made;
  };

  const drawTicks = () => {
    const length = view[1] - view[0];
    const [divisor, symbol] = view[1] < 1e-3 ? [1e-6, "µs"] : view[1] < 1 ? [1e-3, "ms"] : view[1] < 120 ? [1, "s"]
      : view[1] < 3600 ? [60, "min"] : [3600, "h"];
    const rough = length / divisor / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((times) => times * power).find((size) => size >= rough * 0.999);
    const drawn = [node("text", { x: data.right, y: bottom + 28, class: "name end" }, `time (${symbol})`)];
    for (let index = Math.ceil(view[0] / divisor / step - 1e-9); index * step <= view[1] / divisor + 1e-9; index++) {
      const place = x(index * step * divisor).toFixed(1);
      drawn.push(node("line", { x1: place, x2: place, y1: 16, y2: bottom, class: "rule" }));
      drawn.push(node("text", { x: place, y: bottom + 14, class: "tick middle" }, Number((index * step).toPrecision(9))));
    }
    ticks.replaceChildren(...drawn);
  };

  const draw = () => {
    const inView = data.messages.filter(matches);
    const every = Math.ceil(inView.length / MOST_ARROWS);
    shown = inView.filter((_, index) => index % every === 0);
    chosen = -1;
    arrows.replaceChildren(...shown.map(arrow));
    drawTicks();
    const whole = (data.right - data.left) / data.end;
    frame.setAttribute("x", data.left + view[0] * whole);
    frame.setAttribute("width", Math.max(3, (view[1] - view[0]) * whole));
    for (const lane of chart.querySelectorAll("[data-lane]")) {
      lane.style.opacity = !party.value || lane.dataset.lane === party.value ? 1 : 0.55;
    }
    status.textContent = `${inView.length.toLocaleString("en")} of ${data.messages.length.toLocaleString("en")} messages, ` +
      `${seconds(view[0])} to ${seconds(view[1])}` + (every > 1 ? `; every ${every}th is drawn: zoom in to see each` : "");
  };

  const keepInside = (start, length) => {
    const long = Math.min(data.end, Math.max(shortest, length));
    const from = Math.min(Math.max(0, start), data.end - long);
    view = [from, from + long];
  };
  const remember = () => {
    const state = new URLSearchParams();
    if (party.value) state.set("party", party.value);
    if (kind.value) state.set("kind", kind.value);
    state.set("from", Number(view[0].toPrecision(8)));
    state.set("to", Number(view[1].toPrecision(8)));
    history.replaceState(null, "", "#" + state);
  };
  const move = (start, length) => { keepInside(start, length); draw(); remember(); };
  const zoom = (factor, around = (view[0] + view[1]) / 2) => {
    const length = Math.min(data.end, Math.max(shortest, (view[1] - view[0]) * factor));
    move(around - (around - view[0]) / (view[1] - view[0]) * length, length);
  };
  const actions = {
    earlier: () => move(view[0] - (view[1] - view[0]) / 4, view[1] - view[0]),
    later: () => move(view[0] + (view[1] - view[0]) / 4, view[1] - view[0]),
    closer: () => zoom(0.5),
    wider: () => zoom(2),
    whole: () => move(0, data.end),
  };
  const step = (by) => {
    if (!shown.length) return;
    arrows.children[chosen]?.classList.remove("on");
    chosen = chosen < 0 ? (by > 0 ? 0 : shown.length - 1) : Math.min(shown.length - 1, Math.max(0, chosen + by));
    arrows.children[chosen].classList.add("on");
    status.textContent = `${chosen + 1} of ${shown.length}. ${describe(shown[chosen])}`;
  };
  const keys = {
    ArrowLeft: actions.earlier, ArrowRight: actions.later, "+": actions.closer, "=": actions.closer,
    "-": actions.wider, "0": actions.whole, ArrowDown: () => step(1), ArrowUp: () => step(-1),
    Home: () => move(0, view[1] - view[0]), End: () => move(data.end, view[1] - view[0]),
  };
  chart.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  for (const button of document.querySelectorAll("button[data-action]")) {
    button.addEventListener("click", actions[button.dataset.action]);
  }
  for (const choice of [party, kind]) choice.addEventListener("change", () => { draw(); remember(); });

  const timeAt = (svg, event, [start, end]) => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
    return start + (place - data.left) / (data.right - data.left) * (end - start);
  };
  overview.addEventListener("pointerdown", (event) => {
    const length = view[1] - view[0];
    move(timeAt(overview, event, [0, data.end]) - length / 2, length);
  });
  chart.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(chart, event, view));
  }, { passive: false });
  let held = null;
  chart.addEventListener("pointerdown", (event) => { held = { time: timeAt(chart, event, view), view: [...view] }; });
  addEventListener("pointermove", (event) => {
    if (!held) return;
    keepInside(held.view[0] + held.time - timeAt(chart, event, held.view), held.view[1] - held.view[0]);
    draw();
  });
  addEventListener("pointerup", () => { if (held) remember(); held = null; });

  const follow = () => {
    const state = new URLSearchParams(location.hash.slice(1));
    party.value = state.get("party") ?? "";
    kind.value = state.get("kind") ?? "";
    const [from, to] = [Number(state.get("from") ?? NaN), Number(state.get("to") ?? NaN)];
    if (to > from) keepInside(from, to - from);
    draw();
  };
  addEventListener("hashchange", follow);
  follow();
})();
