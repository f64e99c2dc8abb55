"use strict";
// The data of the page: a light index that is there at once, and one packed block per record that is unpacked
// when the record is shown. The other half of this file is html.py.

const INDEX = JSON.parse(document.getElementById("index").textContent);
const METHODS = INDEX.methods;
const ROWS = INDEX.records;
const COUNT = ROWS.step.length;
const KEPT = 16;

const element = (id) => document.getElementById(id);

function make(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text; // text, whatever it looks like: nothing in a record is markup
  return node;
}

// A number as a person reads it: three digits, a real minus sign.
function number(value) {
  if (value === null || value === undefined) return "none";
  if (!Number.isFinite(value)) return "not finite";
  const size = Math.abs(value);
  const short = Number.isInteger(value) && size < 1e6 ? String(size)
    : size !== 0 && (size < 0.001 || size >= 1e6) ? size.toExponential(2)
      : String(Number(size.toPrecision(3)));
  return (value < 0 ? "−" : "") + short;
}

function signed(value, digits = 1) {
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? "0" : (value < 0 ? "−" : "+") + text;
}

const methodName = (m) => METHODS[m].name + (METHODS[m].file ? ` · ${METHODS[m].file}` : "");

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// The text of a block. The page lists records while the browser still reads the file, so a block may not be there.
async function block(id) {
  for (;;) {
    const loading = document.readyState === "loading";
    const node = element(id);
    if (node && (node.nextElementSibling || !loading)) return node.textContent;
    if (!loading) throw new Error(`the page lacks the block ${id}: it was cut off; make the file again`);
    await pause(5);
  }
}

async function unpack(id) {
  const packed = Uint8Array.from(atob(await block(id)), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

const unpacked = new Map();

// The record, with everything that the index knows of it.
async function load(n) {
  if (unpacked.has(n)) return unpacked.get(n);
  const record = await unpack(`r${n}`);
  const finite = (values) => values.map((value) => value ?? NaN);
  record.credit = finite(record.credit);
  record.weight = finite(record.weight);
  // A signal may bear any name, so it lives in a map.
  record.signals = new Map(Object.entries(record.signals).map(([name, values]) => [name, finite(values)]));
  record.trained = (t) => record.mask[t] !== 0;
  record.strength = (t) => {
    const part = record.trained(t) && record.unit > 0 ? record.credit[t] / record.unit : 0;
    return Number.isFinite(part) ? part : 0;
  };
  record.n = n;
  for (const name of ["method", "step", "group", "reward", "advantage", "tokens", "segments"]) {
    record[name] = ROWS[name][n];
  }
  unpacked.set(n, record);
  if (unpacked.size > KEPT) unpacked.delete(unpacked.keys().next().value);
  return record;
}

// Other methods on the same completion, one record each: of the same step and group if there is one.
const bySame = new Map();
ROWS.same.forEach((same, n) => bySame.has(same) ? bySame.get(same).push(n) : bySame.set(same, [n]));

function twins(n) {
  const nearest = new Map();
  const near = (m) => ROWS.step[m] === ROWS.step[n] && ROWS.group[m] === ROWS.group[n];
  for (const m of bySame.get(ROWS.same[n])) {
    const method = ROWS.method[m];
    if (method !== ROWS.method[n] && (!nearest.has(method) || (near(m) && !near(nearest.get(method))))) nearest.set(method, m);
  }
  return [...nearest.values()].sort((a, b) => ROWS.method[a] - ROWS.method[b]);
}
