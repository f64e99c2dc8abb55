// What is on the screen, and what keys and pointer do to it.

const state = { sides: [], strips: [], beside: null, latest: 0, at: null };

function complain(error) {
  element("message").textContent = `This record cannot be shown: ${error.message}`;
  element("message").hidden = false;
}

// Show the record at a place of the list; with `beside`, another method's on the same completion next to it.
async function show() {
  const n = list.order[list.place];
  const turn = ++state.latest;
  element("message").hidden = true;
  if (n === undefined) return showNothing();
  const others = twins(n);
  const other = others.find((m) => ROWS.method[m] === state.beside);
  let records;
  try {
    records = await Promise.all([n, ...(other === undefined ? [] : [other])].map(load));
  } catch (error) {
    if (turn === state.latest) showNothing(), complain(error);
    return;
  }
  if (turn !== state.latest) return; // another record was chosen meanwhile
  const full = Math.max(...records.map((record) => record.full));
  state.sides = records.map((record) => sideNode(record, full));
  state.at = null;
  element("sides").replaceChildren(...state.sides.map(({ node }) => node));
  element("sides").className = records.length > 1 ? "two" : "";
  element("prompt").replaceChildren(...promptNodes(records[0], others.length ? [besideNode(others)] : []));
  element("place").textContent = `${list.place + 1} of ${list.order.length}`;
  element("main").scrollTop = 0;
  state.strips = drawStrips(state.sides, (record, t, jump) => point(record, t, jump));
  const first = records[0].boxes.find((box) => box[2]);
  if (records[0].length) point(records[0], first ? first[0] : 0, false, true);
  else element("token").replaceChildren();
  history.replaceState(null, "", `#record=${n}`);
  document.documentElement.dataset.shown = n; // for a test that waits for it, and one that measures
  performance.mark(`record ${n}`);
}

function showNothing() {
  state.sides = state.strips = [];
  for (const id of ["sides", "prompt", "token", "strips"]) element(id).replaceChildren();
  element("place").textContent = "";
  if (!list.order.length) element("sides").append(make("p", "quiet", "No record passes the filter."));
}

function sideNode(record, full) {
  const node = make("article");
  node.setAttribute("aria-label", methodName(record.method));
  const title = make("h2", "", METHODS[record.method].name);
  title.append(make("small", "", METHODS[record.method].file));
  const { body, nodes } = completion(record, full);
  const solution = solutionNode(record);
  node.append(title, facts(record), legend(record, full), body, ...(solution ? [solution] : []));
  const side = { record, node, nodes };
  const place = (event) => {
    const token = event.target.closest?.(".t");
    return token && body.contains(token) ? Number(token.dataset.t) : null;
  };
  body.addEventListener("pointerover", (event) => place(event) !== null && point(record, place(event)));
  body.addEventListener("focusin", (event) => place(event) !== null && point(record, place(event), false, true));
  body.addEventListener("click", (event) => place(event) !== null && nodes[place(event)].focus());
  return side;
}

function besideNode(others) {
  const label = make("label", "beside", "beside ");
  const select = make("select");
  select.id = "beside";
  select.append(make("option", "", "nothing"));
  select.options[0].value = "";
  for (const m of others) {
    const option = make("option", "", methodName(ROWS.method[m]));
    option.value = ROWS.method[m];
    select.append(option);
  }
  select.value = others.some((m) => ROWS.method[m] === state.beside) ? state.beside : "";
  select.addEventListener("change", async () => {
    state.beside = select.value === "" ? null : Number(select.value);
    await show();
    element("beside")?.focus();
  });
  label.append(select);
  return label;
}

// The token in every side: the same place of the completion, whatever each shows of the tool's answers.
function places(record, t) {
  const hits = [];
  for (const side of state.sides) {
    const at = side.record === record ? t : side.record.position.indexOf(record.position[t]);
    if (at >= 0) hits.push({ side, at });
  }
  return hits;
}

// Make a token the one whose numbers are shown. `jump` moves the keyboard there too.
function point(record, t, jump = false, quiet = false) {
  if (state.at) for (const { side, at } of state.at) side.nodes[at].classList.remove("at");
  state.at = places(record, t);
  for (const { side, at } of state.at) {
    side.nodes[at].classList.add("at");
    for (const node of side.node.querySelectorAll('.t[tabindex="0"]')) node.tabIndex = -1;
    side.nodes[at].tabIndex = 0;
  }
  for (const { cursor, record: drawn } of state.strips) {
    const here = state.at.find(({ side }) => side.record === drawn);
    cursor.setAttribute("visibility", here ? "visible" : "hidden");
    if (here) cursor.setAttribute("x", here.at);
  }
  const own = state.at.filter(({ side }) => side.record === record);
  const shown = [...state.at].sort((a, b) => state.sides.indexOf(a.side) - state.sides.indexOf(b.side));
  const said = showToken(shown.map(({ side, at }) => [side.record, at]));
  if (quiet) element("spoken").textContent = said;
  if (jump) own[0].side.nodes[t].focus();
}

// To the next blamed completion of the list, from its beginning after the last.
function nextFailure() {
  const failed = list.order.map((n, place) => ROWS.advantage[n] < 0 ? place : -1).filter((place) => place >= 0);
  const place = failed.find((other) => other > list.place) ?? failed[0];
  if (place !== undefined) step(place - list.place);
}

let texts = null;

// Keep the records whose prompt or completion has the text, whatever the case.
async function searchText() {
  const wantedText = element("by-text").value.trim().toLowerCase();
  if (!wantedText) list.text = null;
  else {
    texts ??= (await unpack("texts")).rows.map((text) => text.toLowerCase());
    if (wantedText !== element("by-text").value.trim().toLowerCase()) return; // typed on meanwhile
    list.text = new Set(texts.flatMap((text, n) => text.includes(wantedText) ? [n] : []));
  }
  changed();
}

function step(by) {
  const place = Math.min(Math.max(list.place + by, 0), list.order.length - 1);
  if (place === list.place || place < 0) return;
  list.place = place;
  revealRow();
  drawList();
  show();
}

// Walk through the tokens of the side where the keyboard is, or of the first.
function walk(by, onsets = false) {
  const focused = state.sides.find(({ node }) => node.contains(document.activeElement)) ?? state.sides[0];
  if (!focused || !focused.nodes.length) return;
  const here = state.at?.find(({ side }) => side === focused)?.at ?? 0;
  let to = here + by;
  if (onsets) {
    const starts = focused.record.boxes.filter((box) => box[2]).map((box) => box[0]);
    to = by > 0 ? starts.find((start) => start > here) : starts.findLast((start) => start < here);
  }
  if (to >= 0 && to < focused.nodes.length) focused.nodes[to].focus();
}

function nextBeside() {
  const n = list.order[list.place];
  if (n === undefined) return;
  const methods = twins(n).map((m) => ROWS.method[m]);
  state.beside = methods[methods.indexOf(state.beside) + 1] ?? null; // after the last comes none
  show();
}

function openSide(open) {
  document.body.classList.toggle("listing", open);
  element("toggle").setAttribute("aria-expanded", String(open));
  drawList();
}

function focusFilter() {
  openSide(true);
  element("filter").open = true;
  element("by-text").focus();
}

let onsetTable = null;

async function showOnsets() {
  element("onsets").showModal();
  const table = element("onsets").querySelector("tbody");
  try {
    onsetTable ??= await unpack("opened");
  } catch (error) {
    element("onsets-about").textContent = error.message;
    return;
  }
  const hits = new Map();
  let total = 0;
  for (const n of list.order) {
    const row = onsetTable.rows[n];
    for (let at = 0; at < row.length; at += 3) {
      const word = hits.get(row[at]) ?? { count: 0, known: 0, nats: 0, part: 0, rows: new Set() };
      hits.set(row[at], word);
      word.count += 1;
      word.rows.add(n);
      total += 1;
      if (row[at + 1] === null || row[at + 2] === null) continue;
      word.known += 1;
      word.nats += row[at + 1];
      word.part += row[at + 2];
    }
  }
  const most = [...hits].sort((a, b) => b[1].count - a[1].count || a[0] - b[0]).slice(0, 20);
  const longest = most.length ? most[0][1].count : 1;
  element("onsets-about").textContent = total
    ? `${total} onsets in the ${list.order.length} records of the list. KL at the onset in nats, and as a part of the largest in its completion. Choose a token to list its records.`
    : "No segment of two tokens or more between others in the records of the list, so no onset.";
  table.replaceChildren(...most.map(([w, word]) => {
    const row = make("tr");
    const button = make("button", "word", onsetTable.words[w] || "∅");
    button.type = "button";
    button.addEventListener("click", () => {
      list.onset = { word: onsetTable.words[w], rows: word.rows };
      element("onsets").close();
      changed();
    });
    const first = make("th");
    first.scope = "row";
    first.append(button);
    const count = make("td", "bar", String(word.count));
    count.style.setProperty("--part", word.count / longest);
    const mean = (sum) => word.known ? number(sum / word.known) : "none";
    row.append(first, count, make("td", "", `${(100 * word.count / total).toFixed(1)}%`), make("td", "", mean(word.nats)), make("td", "", mean(word.part)));
    return row;
  }));
}

function changed(sorted = false) {
  const before = sorted ? undefined : list.order[list.place];
  refilter(before);
  if (sorted || list.order[list.place] !== before || !state.sides.length) show();
  else element("place").textContent = `${list.place + 1} of ${list.order.length}`;
}

const KEYS = {
  j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1),
  ArrowRight: () => walk(1), ArrowLeft: () => walk(-1), n: () => walk(1, true), p: () => walk(-1, true),
  x: nextFailure, "/": focusFilter, f: focusFilter, c: nextBeside, o: showOnsets, "?": () => element("help").showModal(),
  w: () => document.body.classList.toggle("plain"),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const field = event.target.closest?.("input, select, textarea");
  if (event.key === "Escape" && (field || document.body.classList.contains("listing"))) {
    openSide(false);
    element("main").focus();
    return;
  }
  const action = KEYS[event.key];
  if (field || !action) return;
  event.preventDefault();
  action();
});

element("list").addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  if (!row) return;
  list.place = Number(row.dataset.place);
  drawList();
  openSide(false);
  show();
});
element("list").addEventListener("keydown", (event) => {
  const page = Math.max(1, Math.floor(element("list").clientHeight / ROW_HEIGHT) - 1);
  const by = { PageDown: page, PageUp: -page, Home: -COUNT, End: COUNT }[event.key];
  if (by) event.preventDefault(), step(by);
});
element("toggle").addEventListener("click", () => openSide(!document.body.classList.contains("listing")));
element("previous").addEventListener("click", () => step(-1));
element("next").addEventListener("click", () => step(1));
element("next-failure").addEventListener("click", nextFailure);
element("by-text").addEventListener("input", searchText);
element("show-onsets").addEventListener("click", showOnsets);
element("show-help").addEventListener("click", KEYS["?"]);
for (const sample of document.querySelectorAll("[data-strength]")) sample.style.setProperty("--s", sample.dataset.strength);

setUpFilter(changed);
const linked = /^#record=(\d+)(&beside)?$/.exec(location.hash);
if (matchMedia("(max-width: 760px)").matches) element("filter").open = false;
refilter(linked ? Number(linked[1]) : INDEX.first);
if (linked?.[2]) nextBeside();
else show();
