// What the forward passes saw, as strips under the text, and the numbers of the token under the pointer.

const NAMES = new Map([["divergence", "KL"], ["student_entropy", "entropy"]]);
const SVG = "http://www.w3.org/2000/svg";

const signalName = (name) => NAMES.get(name) ?? name.replaceAll("_", " ");

// The signals in the order of the strips: divergence and entropy first, as in the paper's figure.
function ordered(record) {
  const rank = (name) => [...NAMES.keys()].indexOf(name) + 1 || 99;
  return [...record.signals.keys()].sort((a, b) => rank(a) - rank(b));
}

function shape(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// Largest and smallest number of a strip, with 0 between: nothing is drawn from anywhere but 0.
function range(values, record) {
  let low = 0;
  let high = 0;
  for (let t = 0; t < record.length; t++) {
    if (!record.trained(t) || !Number.isFinite(values[t])) continue;
    low = Math.min(low, values[t]);
    high = Math.max(high, values[t]);
  }
  return [low, high];
}

// One step per token, from 0; a gap where the token was not trained or the number is not finite.
function outline(values, record, low, high) {
  const y = (value) => (100 * (high - value) / (high - low || 1)).toFixed(1);
  const floor = y(0);
  let path = "";
  for (let t = 0; t < record.length; t++) {
    if (!record.trained(t) || !Number.isFinite(values[t]) || values[t] === 0) continue;
    const before = t > 0 && record.trained(t - 1) && values[t - 1] === values[t];
    path += before && path ? `H${t + 1}` : `M${t} ${floor}V${y(values[t])}H${t + 1}`;
    const after = t + 1 < record.length && record.trained(t + 1) && values[t + 1] === values[t];
    if (!after) path += `V${floor}`;
  }
  return path;
}

function strip(record, name, values, about, kind) {
  let [low, high] = range(values, record);
  if (kind === "credit" && record.advantage) {
    low = Math.min(low, Math.sign(record.advantage));
    high = Math.max(high, Math.sign(record.advantage));
  }
  const row = make("div", `strip ${kind}`);
  const label = make("span", "name", name);
  label.append(make("small", "", about(low, high)));
  const drawing = shape("svg", {
    viewBox: `0 0 ${Math.max(record.length, 1)} 100`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${name}, ${about(low, high)}, over ${record.tokens} tokens`,
  });
  for (let t = 0; t < record.length; t++) { // tool output
    if (record.trained(t)) continue;
    const from = t;
    while (t + 1 < record.length && !record.trained(t + 1)) t += 1;
    drawing.append(shape("rect", { class: "gap", x: from, y: 0, width: t + 1 - from, height: 100 }));
  }
  for (const [start, stop, onset] of record.boxes) {
    drawing.append(shape("rect", { class: onset ? "span opened" : "span", x: start, y: 0, width: stop - start, height: 100 }));
  }
  const level = (value) => (100 * (high - value)) / (high - low || 1);
  drawing.append(shape("path", { class: "zero", d: `M0 ${level(0).toFixed(1)}H${record.length}` }));
  if (kind === "credit" && record.advantage) { // what GRPO gives every token
    drawing.append(shape("path", { class: "grpo", d: `M0 ${level(Math.sign(record.advantage)).toFixed(1)}H${record.length}` }));
  }
  for (const sign of kind === "credit" ? ["praise", "blame"] : [""]) {
    const part = sign ? values.map((value) => (value > 0) === (sign === "praise") ? value : 0) : values;
    drawing.append(shape("path", { class: `curve ${sign}`, d: outline(part, record, low, high) }));
  }
  const cursor = shape("rect", { class: "cursor", x: 0, y: 0, width: 1, height: 100, visibility: "hidden" });
  drawing.append(cursor);
  row.append(label, drawing);
  return { row, drawing, cursor, record };
}

// The strips of one or two records of the same completion: the credit of each, then the signals of both.
function drawStrips(sides, choose) {
  const strips = [];
  const several = sides.length > 1;
  const whose = (side) => several ? ` ${METHODS[side.record.method].name}` : "";
  for (const side of sides) {
    const values = Float64Array.from({ length: side.record.length }, (_, t) => side.record.strength(t));
    const about = (low, high) => `${signed(low)} to ${signed(high)}${side.record.advantage ? ", dashed GRPO's" : ""}`;
    strips.push(strip(side.record, `credit${whose(side)}`, values, about, "credit"));
  }
  const seen = new Set();
  for (const side of sides) {
    for (const name of ordered(side.record)) {
      const other = several && sides[0] !== side && sides[0].record.signals.get(name);
      if (other && same(other, side.record.signals.get(name))) continue; // the same forward pass: once is enough
      const twice = seen.has(name);
      seen.add(name);
      const about = (low, high) => low < 0 ? `${number(low)} to ${number(high)}` : `1 = ${number(high)}`;
      strips.push(strip(side.record, signalName(name) + (twice ? whose(side) : ""), side.record.signals.get(name), about, name));
    }
  }
  for (const { drawing, record } of strips) {
    const at = (event) => {
      const box = drawing.getBoundingClientRect();
      const t = Math.floor(record.length * (event.clientX - box.left) / box.width);
      if (t >= 0 && t < record.length) choose(record, t, event.type === "click");
    };
    drawing.addEventListener("pointermove", at);
    drawing.addEventListener("click", at);
  }
  element("strips").className = strips.length > 4 ? "many" : "";
  element("strips").replaceChildren(...strips.map(({ row }) => row));
  return strips;
}

const same = (a, b) => a.length === b.length && a.every((value, t) => value === b[t] || (value !== value && b[t] !== b[t]));

function numbersOf(record, t) {
  const pairs = [];
  if (!record.trained(t)) return [["", record.turns ? "tool output, not trained" : "not trained"]];
  const box = record.boxes.find(([start, stop]) => start <= t && t < stop);
  const opens = box && box[2] && box[0] === t;
  pairs.push(["segment", number(record.segment[t]) + (opens ? " ▾ onset" : "")]);
  if (record.turns) pairs.push(["turn", number(record.turn[t] + 1)]);
  if (record.advantage) pairs.push(["weight", number(record.weight[t])]);
  const credit = record.credit[t];
  pairs.push(["advantage", (credit > 0 ? "+" : "") + number(credit) + (credit > 0 ? " praise" : credit < 0 ? " blame" : "")]);
  for (const name of ordered(record)) pairs.push([signalName(name), number(record.signals.get(name)[t])]);
  return pairs;
}

// The numbers of a token, one line for each method; returns what a screen reader says.
function showToken(places) {
  const lines = places.map(([record, t]) => {
    const line = make("p");
    if (places.length > 1) line.append(make("b", "who", METHODS[record.method].name));
    for (const [name, value] of numbersOf(record, t)) {
      const pair = make("span", "pair");
      if (name) pair.append(make("i", "", name), " ");
      pair.append(make("span", "value", value));
      line.append(pair);
    }
    return line;
  });
  const [record, t] = places[0];
  const head = make("p", "which");
  const code = make("code");
  const text = record.words[record.word[t]];
  write(code, text.length > 60 ? `${text.slice(0, 60)}…` : text);
  code.normalize();
  head.append(code, make("span", "quiet", `token ${record.position[t] + 1} of ${record.tokens}, id ${record.ids[record.word[t]]}`));
  element("token").replaceChildren(head, ...lines);
  return `${text}. ${lines.map((line) => [...line.children].map((part) => part.textContent).join(", ")).join(". ")}`;
}
