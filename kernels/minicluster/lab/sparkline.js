// A curve as a small picture without axes.

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, EDGE] = [120, 28, 2];
const MOST = 240;

// curve: {name, step, value}, arrays of one length; a value may be null.
export function sparkline({ name, step, value }) {
  const svg = made("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "mc-run-curve", role: "img" });
  const known = step.map((x, index) => [x, value[index]]).filter(([, y]) => Number.isFinite(y));
  svg.setAttribute("aria-label", known.length ? `${name}: ${short(known[0][1])} to ${short(known.at(-1)[1])}` : name);
  if (known.length) {
    const [x, y] = [scale(known.map((one) => one[0]), EDGE, WIDTH - EDGE), scale(known.map((one) => one[1]), HEIGHT - EDGE, EDGE)];
    svg.append(made("polyline", { points: known.map((one) => `${x(one[0])},${y(one[1])}`).join(" ") }));
    const [lastX, lastY] = known.at(-1);
    svg.append(made("circle", { cx: x(lastX), cy: y(lastY), r: 1.8 }));
  }
  return svg;
}

// Add a point to a curve; a curve with many points loses every second one.
export function addPoint(curve, step, value) {
  if (step !== null && step === curve.step.at(-1)) {
    curve.value[curve.value.length - 1] = value;
    return;
  }
  curve.step.push(step ?? (curve.step.at(-1) ?? -1) + 1);
  curve.value.push(value);
  if (curve.step.length > MOST) {
    const kept = (_, index) => index % 2 === 0 || index === curve.step.length - 1;
    [curve.step, curve.value] = [curve.step.filter(kept), curve.value.filter(kept)];
  }
}

export function short(number) {
  if (!Number.isFinite(number)) {
    return "";
  }
  const size = Math.abs(number);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? number.toExponential(2) : `${Number(number.toPrecision(4))}`;
}

// Returns the function from values to positions between two edges.
function scale(values, from, to) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const span = high - low;
  return (one) => (span ? from + ((one - low) / span) * (to - from) : (from + to) / 2).toFixed(1);
}

function made(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  return element;
}

// The metric of a run's small picture: a loss, if it has one.
export function mainMetric(names) {
  const interest = (name) => (name === "loss" ? 0 : name.toLowerCase().includes("loss") ? 1 : 2);
  return [...names].sort((one, other) => interest(one) - interest(other) || one.length - other.length)[0];
}
