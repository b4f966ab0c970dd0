// Who held which slots when, and what waits: a Gantt chart in SVG. Each slot of a node has a row.

import { ask, dayTime, element, url, user } from "../service.js";

const place = document.getElementById("timeline");
const told = document.getElementById("timeline-told");
const range = document.getElementById("timeline-range");
const waitingList = document.getElementById("waiting");
const hint = told.cloneNode(true);

const ROW = 22;
const GAP = 8;
const AXIS = 24;
const MOST_EXPECTED = 12;
const OTHERS = 7;
const CHARACTER = 7;
const LEAST_WIDTH = 4;
const STEPS = [60, 300, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];

// null: the timeline goes on with the time.
let end = null;
let shown = null;

export async function loadTimeline() {
  const span = Number(range.value);
  const high = end ?? Math.ceil(Date.now() / 1000);
  shown = await ask("api/timeline", { query: { low: high - span, high } });
  draw();
}

function move(parts) {
  const now = Date.now() / 1000;
  const later = (end ?? now) + parts * Number(range.value);
  end = parts === 0 || later >= now ? null : Math.round(later);
  loadTimeline().catch(reportError);
}

document.getElementById("timeline-earlier").addEventListener("click", () => move(-0.5));
document.getElementById("timeline-later").addEventListener("click", () => move(0.5));
document.getElementById("timeline-now").addEventListener("click", () => move(0));
range.addEventListener("change", () => move(0));
new ResizeObserver(() => shown && place.firstChild?.dataset?.width !== String(place.clientWidth) && draw()).observe(place);

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// --- geometry -----------------------------------------------------------------------------

// Where things stand: `x` of a time, `rows` by node, the height.
function layout(timeline, expected) {
  const width = Math.max(320, place.clientWidth);
  const names = [...timeline.nodes.map((node) => node.name), expected.length ? "waiting" : ""];
  const left = Math.min(0.3 * width, 16 + CHARACTER * Math.max(...names.map((name) => name.length)));
  const latest = Math.max(timeline.high, ...expected.map((wait) => wait.expected_start_at));
  const most = timeline.high + 0.3 * (timeline.high - timeline.low);
  // A little of the future, in which waiting jobs are expected to start.
  const high = end === null ? Math.min(most, Math.max(latest + 0.05 * (timeline.high - timeline.low), timeline.high)) : timeline.high;
  const x = (time) => left + ((Math.min(high, Math.max(timeline.low, time)) - timeline.low) / (high - timeline.low)) * (width - left - 4);
  let y = AXIS;
  const rows = new Map();
  for (const node of timeline.nodes) {
    const lanes = Math.max(node.slots, 1 + Math.max(-1, ...timeline.bars.filter((bar) => bar.node === node.name).flatMap((bar) => bar.lanes)));
    rows.set(node.name, { y, lanes });
    y += lanes * ROW + GAP;
  }
  const waitingY = y;
  y += expected.length ? expected.length * ROW + GAP : 0;
  return { width, left, x, rows, waitingY, height: y, low: timeline.low, high };
}

function ticks({ low, high, width, left, x }) {
  const step = STEPS.find((one) => ((high - low) / one) * 80 <= width - left) ?? STEPS.at(-1);
  const offset = new Date(low * 1000).getTimezoneOffset() * 60;
  const first = Math.ceil((low - offset) / step) * step + offset;
  const times = Array.from({ length: Math.max(0, Math.floor((high - first) / step) + 1) }, (_, index) => first + index * step);
  const days = step >= 86400;
  const form = days ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit" };
  return times.map((time) => ({ x: x(time), text: new Date(time * 1000).toLocaleString([], form) }));
}

// Rows that lie together are one rectangle.
function stretches(lanes) {
  const found = [];
  for (const lane of [...lanes].sort((one, other) => one - other)) {
    const last = found.at(-1);
    if (last && last[0] + last[1] === lane) {
      last[1] += 1;
    } else {
      found.push([lane, 1]);
    }
  }
  return found;
}

// --- words --------------------------------------------------------------------------------

function slots(count) {
  return count === 1 ? "1 slot" : `${count} slots`;
}

function nameOf(bar) {
  if (bar.server) {
    return `notebook server of ${bar.owner}`;
  }
  return bar.job_id === null ? `of ${bar.owner}` : `job ${bar.job_id}${bar.name ? ` (${bar.name})` : ""} of ${bar.owner}`;
}

function describe(bar) {
  const until = bar.ended_at === null ? "until now" : `until ${dayTime(bar.ended_at)}`;
  return `${nameOf(bar)}: ${slots(bar.lanes.length)} of ${bar.node} from ${dayTime(bar.began_at)} ${until}`;
}

function describeWait(wait) {
  const name = `job ${wait.job_id}${wait.name ? ` (${wait.name})` : ""} of ${wait.owner}`;
  const start = wait.expected_start_at === null ? "" : `, expected to start about ${dayTime(wait.expected_start_at)}`;
  return `${name} waits for ${slots(wait.slots)}${start}${wait.reason ? `: ${wait.reason}` : ""}`;
}

function colour(owner) {
  if (owner === user) {
    return "mc-owner-0";
  }
  let hash = 0;
  for (const character of owner) {
    hash = (31 * hash + character.codePointAt(0)) % 65521;
  }
  return `mc-owner-${1 + (hash % OTHERS)}`;
}

// --- drawing ------------------------------------------------------------------------------

function draw() {
  const focused = place.querySelector(":focus")?.dataset.key;
  const expected = end === null ? shown.waiting.filter((wait) => wait.expected_start_at !== null).slice(0, MOST_EXPECTED) : [];
  const at = layout(shown, expected);
  const picture = svg("svg", { height: at.height, role: "group", "aria-label": "Who had which slots", "data-width": place.clientWidth });
  picture.append(...background(shown, at, expected.length));
  if (end === null) {
    const x = at.x(shown.now);
    picture.append(svg("line", { class: "mc-now", x1: x, x2: x, y1: AXIS - 4, y2: at.height }));
  }
  picture.append(...bars(shown, at), ...expectedBars(expected, at));
  place.replaceChildren(picture);
  const all = [...picture.querySelectorAll("[data-key]")];
  const first = all.find((bar) => bar.dataset.key === focused) ?? all[0];
  first?.setAttribute("tabindex", "0");
  if (focused && first?.dataset.key === focused) {
    first.focus();
  }
  waitingList.replaceChildren(...shown.waiting.map((wait) => element("li", {}, describeWait(wait))));
}

function* background(timeline, at, waiting) {
  for (const node of timeline.nodes) {
    const { y, lanes } = at.rows.get(node.name);
    yield svg("rect", { class: "mc-row", x: at.left, y, width: at.width - at.left - 4, height: lanes * ROW });
    yield label(node.name, y, at);
  }
  if (waiting) {
    yield label("waiting", at.waitingY, at);
  }
  for (const tick of ticks(at)) {
    yield svg("line", { class: "mc-tick", x1: tick.x, x2: tick.x, y1: AXIS - 4, y2: at.height });
    if (tick.x + 36 < at.width) {
      yield svg("text", { x: tick.x, y: AXIS - 9, "text-anchor": "middle" }, tick.text);
    }
  }
}

function label(text, y, { left }) {
  const room = Math.floor((left - 8) / CHARACTER);
  return svg("text", { x: 4, y: y + 15 }, text.length > room ? `${text.slice(0, room - 1)}…` : text);
}

function* bars(timeline, at) {
  const order = new Map(timeline.nodes.map((node, index) => [node.name, index]));
  const sorted = [...timeline.bars].sort((one, other) => order.get(one.node) - order.get(other.node) || one.began_at - other.began_at);
  for (const bar of sorted) {
    const { y } = at.rows.get(bar.node);
    const x = at.x(bar.began_at);
    const width = Math.max(LEAST_WIDTH, at.x(bar.ended_at ?? timeline.now) - x);
    const parts = stretches(bar.lanes).flatMap(([lane, count]) => box(x, y + lane * ROW, width, count * ROW, barText(bar)));
    const link = bar.job_id !== null && (bar.owner === user || bar.name) ? `${url}runs/${bar.job_id}` : null;
    yield interactive(`${bar.node} ${bar.job_id} ${bar.began_at} ${bar.lanes[0]}`, colour(bar.owner), describe(bar), link, parts);
  }
}

function barText(bar) {
  return bar.server || bar.job_id === null ? bar.owner : `${bar.job_id} ${bar.owner}`;
}

function* expectedBars(expected, at) {
  for (const [index, wait] of expected.entries()) {
    const x = Math.min(at.x(wait.expected_start_at), at.width - 60);
    const parts = box(x, at.waitingY + index * ROW, at.width - 4 - x, ROW, `${wait.job_id} ${wait.owner}`);
    yield interactive(`wait ${wait.job_id}`, `${colour(wait.owner)} mc-expected`, describeWait(wait), null, parts);
  }
}

function box(x, y, width, height, text) {
  const rect = svg("rect", { x, y: y + 1, width, height: height - 2 });
  const room = Math.floor((width - 8) / CHARACTER);
  const visible = text.length <= room ? text : room > 4 ? `${text.slice(0, room - 1)}…` : "";
  return visible ? [rect, svg("text", { x: x + 4, y: y + height / 2 + 4 }, visible)] : [rect];
}

// One bar is in the order of the Tab key; the arrow keys go to the others.
function interactive(key, className, text, link, parts) {
  const attributes = { class: `mc-bar ${className}`, "data-key": key, tabindex: "-1", "aria-label": text };
  const made = link ? svg("a", { ...attributes, href: link }, ...parts) : svg("g", { ...attributes, role: "img" }, ...parts);
  made.addEventListener("focus", () => tellText(text));
  made.addEventListener("mouseenter", () => tellText(text));
  made.addEventListener("mouseleave", () => tellText(place.querySelector(":focus")?.getAttribute("aria-label")));
  made.addEventListener("keydown", step);
  return made;
}

function tellText(text) {
  told.replaceChildren(...(text ? [text] : hint.cloneNode(true).childNodes));
}

function step(event) {
  const all = [...place.querySelectorAll("[data-key]")];
  const index = all.indexOf(event.currentTarget);
  const to = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1, Home: 0, End: all.length - 1 }[event.key];
  if (to !== undefined && all[to]) {
    event.preventDefault();
    event.currentTarget.setAttribute("tabindex", "-1");
    all[to].setAttribute("tabindex", "0");
    all[to].focus();
  }
}
