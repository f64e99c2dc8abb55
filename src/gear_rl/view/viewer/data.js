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

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function half(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent === 0 ? fraction * 2 ** -24
    : exponent === 31 ? (fraction ? NaN : Infinity)
      : (1 + fraction / 1024) * 2 ** (exponent - 15);
  return bits & 0x8000 ? -size : size;
}

function unpack(bytes) {
  const head = new DataView(bytes.buffer).getUint32(0, true);
  const record = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + head)));
  const length = record.length;
  let at = 4 + head;
  record.signals = new Map();
  for (const column of record.columns) {
    const whole = column.kind === "i";
    const values = whole ? new Int32Array(length) : new Float64Array(length);
    for (let t = 0; t < length; t++) { // the lowest byte of every number, then the next of every number
      let bits = bytes[at + t] | (bytes[at + length + t] << 8);
      if (whole) bits |= (bytes[at + 2 * length + t] << 16) | (bytes[at + 3 * length + t] << 24);
      values[t] = whole ? bits : half(bits) * column.scale;
    }
    at += length * (whole ? 4 : 2);
    // The first seven belong to every record; a signal may bear any name, so it lives in a map of its own.
    if (record.columns.indexOf(column) < 7) record[column.name] = values;
    else record.signals.set(column.name, values);
  }
  record.trained = (t) => record.mask[t] !== 0;
  record.strength = (t) => {
    const part = record.trained(t) && record.unit > 0 ? record.credit[t] / record.unit : 0;
    return Number.isFinite(part) ? part : 0;
  };
  return record;
}

const unpacked = new Map();

// The record, with everything that the index knows of it.
async function load(n) {
  if (unpacked.has(n)) return unpacked.get(n);
  const record = unpack(await inflate(await block(`r${n}`)));
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
