// Parallel coordinates: an axis for each parameter and one for the value; a line for each trial.

import { shown } from "./sweep_values.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 300;
const TOP = 40;
const BOTTOM = 24;
const SIDE = 70;
const TICKS = 4;
const MOST_LINES = 500;
const WIDE = 1000;

function drawn(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  if (text !== undefined) {
    made.textContent = text;
  }
  return made;
}

// An axis maps a value to 0 (bottom) .. 1 (top). ticks: values with a label.
function choiceAxis(name, choices) {
  const labels = choices.map((choice) => JSON.stringify(choice));
  return {
    name,
    ticks: choices,
    at: (value) => {
      const index = labels.indexOf(JSON.stringify(value));
      return index < 0 ? null : (index + 0.5) / labels.length;
    },
  };
}

function numberAxis(name, low, high, isLog) {
  const scale = isLog ? Math.log : (value) => value;
  const back = isLog ? Math.exp : (value) => value;
  const [from, span] = [scale(low), scale(high) - scale(low) || 1];
  const ticks = Array.from({ length: TICKS + 1 }, (_, index) => back(from + (span * index) / TICKS));
  return {
    name,
    ticks: low === high ? [low] : ticks,
    at: (value) => (typeof value === "number" ? (scale(value) - from) / span : null),
  };
}

function axes(details) {
  const own = Object.entries(details.spaces).map(([name, among]) =>
    among.kind === "choices"
      ? choiceAxis(name, among.choices)
      : numberAxis(name, among.low, among.high, among.log),
  );
  const values = details.trials.map((trial) => trial.value).filter(Number.isFinite);
  if (values.length) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    // One trial that went astray would press all others together.
    own.push(numberAxis(details.sweep.settings.metric, low, high, low > 0 && high > WIDE * low));
  }
  return own;
}

// From blue (the best) to orange (the worst); colours that red-green blind people tell apart.
function colour(share) {
  const mix = (from, to) => Math.round(from + (to - from) * share);
  return `rgb(${mix(20, 230)}, ${mix(90, 130)}, ${mix(200, 20)})`;
}

// Draws all trials into a box. chosen: the number of the trial in front; choose(number): called at a click.
export function drawLines(box, details, chosen, choose) {
  const found = axes(details);
  if (found.length < 2) {
    box.replaceChildren();
    return;
  }
  const width = Math.max(480, box.clientWidth || 900);
  const picture = drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", width: "100%", height: HEIGHT });
  picture.append(drawn("title", {}, "Parameters and values of all trials"));
  const x = (index) => SIDE + ((width - 2 * SIDE) * index) / (found.length - 1);
  const y = (share) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share;
  const value = found.at(-1);
  const { maximize, metric } = details.sweep.settings;
  const trials = details.trials.slice(-MOST_LINES).sort((a, b) => (a.number === chosen) - (b.number === chosen));
  for (const trial of trials) {
    const points = found
      .map((axis, index) => [x(index), axis.at(axis === value && axis.name === metric ? trial.value : trial.params[axis.name])])
      .filter(([, share]) => share !== null && Number.isFinite(share))
      .map(([left, share]) => `${left},${y(share)}`);
    const share = value.name === metric ? value.at(trial.value) : null;
    const isBad = share === null || !["complete", "running"].includes(trial.state);
    const line = drawn("polyline", {
      points: points.join(" "),
      fill: "none",
      stroke: share === null ? "gray" : colour(maximize ? 1 - share : share),
      "stroke-width": trial.number === chosen ? 4 : 1.5,
      "stroke-opacity": trial.number === chosen ? 1 : isBad ? 0.25 : 0.7,
      "data-trial": trial.number,
      class: "sweep-line",
    });
    line.append(drawn("title", {}, `trial ${trial.number}: ${trial.state}, ${metric} ${shown(trial.value)}`));
    line.addEventListener("click", () => choose(trial.number));
    picture.append(line);
  }
  for (const [index, axis] of found.entries()) {
    picture.append(
      drawn("line", { x1: x(index), x2: x(index), y1: y(0), y2: y(1), stroke: "currentColor", "stroke-opacity": 0.5 }),
      drawn("text", { x: x(index), y: 16, "text-anchor": "middle", class: "sweep-axis" }, axis.name.slice(0, 24)),
    );
    for (const tick of axis.ticks) {
      const place = { x: x(index) + 5, y: y(axis.at(tick)) + 4, class: "sweep-tick" };
      picture.append(drawn("text", place, shown(tick).slice(0, 14)));
    }
  }
  box.replaceChildren(picture);
}
