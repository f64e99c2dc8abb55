// The list of records: only the rows on the screen exist, and the filter over it.

const ROW_HEIGHT = 54; // of the style sheet's .row
const list = { order: [], place: 0, onset: null, text: null, drawn: "" };

const wanted = (id) => element(id).value === "" ? null : Number(element(id).value);

function between(value, from, to) {
  if (from === null && to === null) return true;
  return value !== null && (from === null || value >= from) && (to === null || value <= to);
}

// The records that the filter lets through, in the chosen order.
function filtered() {
  const method = wanted("by-method");
  const group = wanted("by-group");
  const [stepFrom, stepTo, rewardFrom, rewardTo] = ["step-from", "step-to", "reward-from", "reward-to"].map(wanted);
  const kept = [];
  for (let n = 0; n < COUNT; n++) {
    if ((method === null || ROWS.method[n] === method)
      && (group === null || ROWS.group[n] === group)
      && between(ROWS.step[n], stepFrom, stepTo)
      && between(ROWS.reward[n], rewardFrom, rewardTo)
      && (list.onset === null || list.onset.rows.has(n))
      && (list.text === null || list.text.has(n))
      && (!element("twins").checked || twins(n).length)) kept.push(n);
  }
  const chosen = element("order").value;
  if (!chosen) return kept;
  const rising = chosen === "reward";
  const order = chosen.replace("-", "");
  const last = rising ? Infinity : -Infinity;
  const value = (n) => ROWS[order][n] ?? last; // what has no number comes last
  return kept.sort((a, b) => (value(a) === value(b) ? a - b : (value(a) < value(b)) === rising ? -1 : 1));
}

function rowNode(place) {
  const n = list.order[place];
  const row = make("div", "row");
  row.id = `row-${n}`;
  row.style.setProperty("top", `${place * ROW_HEIGHT}px`);
  row.setAttribute("role", "option");
  row.setAttribute("aria-selected", String(place === list.place));
  row.setAttribute("aria-setsize", String(list.order.length));
  row.setAttribute("aria-posinset", String(place + 1));
  row.dataset.place = place;
  const head = make("span", "head");
  const sign = ROWS.advantage[n] > 0 ? "+" : ROWS.advantage[n] < 0 ? "−" : "0";
  const mark = make("span", `sign ${sign === "+" ? "praise" : sign === "−" ? "blame" : ""}`, sign);
  mark.title = "sign of the advantage";
  head.append(mark, make("b", "", METHODS[ROWS.method[n]].name));
  head.append(make("span", "", `step ${ROWS.step[n]} · group ${ROWS.group[n]}`));
  head.append(make("span", "reward", ROWS.reward[n] === null ? "" : `reward ${number(ROWS.reward[n])}`));
  row.append(head, make("span", "hint", ROWS.hint[n]));
  return row;
}

function drawList() {
  const box = element("list");
  const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - 4);
  const last = Math.min(list.order.length, first + Math.ceil(box.clientHeight / ROW_HEIGHT) + 8);
  const nodes = [];
  for (let place = first; place < last; place++) nodes.push(rowNode(place));
  element("rows").replaceChildren(...nodes);
  element("rows").style.setProperty("height", `${list.order.length * ROW_HEIGHT}px`);
  const current = list.order[list.place];
  if (current !== undefined && element(`row-${current}`)) box.setAttribute("aria-activedescendant", `row-${current}`);
  else box.removeAttribute("aria-activedescendant");
}

function revealRow() {
  const box = element("list");
  const top = list.place * ROW_HEIGHT;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ROW_HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW_HEIGHT - box.clientHeight;
}

// Apply the filter; the record on the screen stays if it is still among them.
function refilter(keep) {
  list.order = filtered();
  list.place = Math.max(0, list.order.indexOf(keep));
  const all = list.order.length === COUNT;
  element("count").textContent = all ? `${COUNT} records` : `${list.order.length} of ${COUNT} records`;
  const chip = element("by-onset");
  chip.hidden = list.onset === null;
  chip.textContent = list.onset === null ? "" : `onset “${list.onset.word}” ✕`;
  chip.setAttribute("aria-label", list.onset === null ? "" : `no longer only records with the onset ${list.onset.word}`);
  drawList(); // before and after, since only a list of the right height can be scrolled
  revealRow();
  drawList();
}

function extremes(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : ["", ""];
}

function setUpFilter(changed) {
  METHODS.forEach((_, m) => {
    const option = make("option", "", methodName(m));
    option.value = m;
    element("by-method").append(option);
  });
  for (const [name, column] of [["step", ROWS.step], ["reward", ROWS.reward]]) {
    const [low, high] = extremes(column);
    element(`${name}-from`).placeholder = low === "" ? "none" : number(low);
    element(`${name}-to`).placeholder = high === "" ? "none" : number(high);
  }
  element("by-group").placeholder = "all";
  const steps = [...new Set(ROWS.step)].sort((a, b) => a - b);
  const slider = element("step-slider");
  slider.max = steps.length;
  slider.addEventListener("input", () => { // the left end is all steps
    const step = slider.value === "0" ? "" : String(steps[slider.value - 1]);
    element("step-from").value = element("step-to").value = step;
    element("step-shown").textContent = step || "all";
  });
  const form = element("filter").querySelector("form");
  form.addEventListener("input", (event) => {
    if (event.target.id === "by-text") return; // searchText
    if (event.target.id.startsWith("step-") && event.target !== slider) element("step-shown").textContent = "", slider.value = 0;
    changed(event.target.id === "order");
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    list.onset = list.text = null;
    element("step-shown").textContent = "all";
    setTimeout(changed); // after the fields are empty
  });
  element("by-onset").addEventListener("click", () => {
    list.onset = null;
    changed();
  });
  element("list").addEventListener("scroll", drawList, { passive: true });
  addEventListener("resize", drawList);
}
