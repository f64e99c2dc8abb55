// A completion as text: each token on the colour of its credit, segments boxed, turns on lines of their own.

// Where a tool call begins and where the text after it does: calls stand on lines of their own.
function callBreaks(record) {
  const breaks = new Set();
  let text = "";
  const starts = [];
  for (let t = 0; t < record.length; t++) {
    starts.push(text.length);
    text += record.trained(t) ? record.words[record.word[t]] : "\n";
  }
  const tokenAt = (place) => { // the last token that starts at or before the place
    let low = 0;
    let high = starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= place) low = middle; else high = middle - 1;
    }
    return low;
  };
  for (const tag of text.matchAll(/<tool_call>|<\/tool_call>/g)) {
    const opens = tag[0] === "<tool_call>";
    const place = opens ? tag.index : tag.index + tag[0].length;
    const broken = text[opens ? place - 1 : place] === "\n";
    const t = tokenAt(place);
    if (!broken && place > 0 && place < text.length && starts[t] === place) breaks.add(t);
  }
  return breaks;
}

// The text of a token; a line break is shown and then made.
function write(node, text) {
  if (text === "") return void node.append(make("span", "brk", "∅"));
  text.split("\n").forEach((part, n) => {
    if (n) node.append(make("span", "brk", "⏎"), "\n");
    if (part) node.append(part);
  });
}

function tokenNode(record, t, full) {
  const strength = record.strength(t);
  const kind = !record.trained(t) ? "off" : strength > 0 ? "praise" : strength < 0 ? "blame" : "";
  const node = make("span", `t ${kind}${t === record.mistake ? " mistake" : ""}`);
  if (strength) node.style.setProperty("--s", Math.min(Math.abs(strength) / full, 1).toFixed(4));
  node.dataset.t = t;
  node.tabIndex = -1;
  write(node, record.words[record.word[t]]);
  return node;
}

function boxNode(record, start, stop, onset) {
  const box = make("span", onset ? "box onset" : "box");
  box.dataset.worth = worth(record, start, stop);
  return box;
}

// A segment's weight as in the terminal, or its credit at advantage 0; its extremes where a method varies it within.
function worth(record, start, stop) {
  const values = Array.from(record.advantage ? record.weight : record.credit).slice(start, stop).filter(Number.isFinite);
  if (!values.length) return "";
  const shown = (value) => record.advantage ? value.toFixed(1).replace("-", "−").replace("−0.0", "0.0") : signed(value);
  const [low, high] = [shown(Math.min(...values)), shown(Math.max(...values))];
  return `⟨${low === high ? low : `${low}..${high}`}⟩`;
}

function turnNode(record, t) {
  const trained = record.trained(t);
  const turn = make("div", trained ? "turn" : "turn answer");
  turn.append(make("span", "label", trained ? `turn ${record.turn[t] + 1}` : "tool"));
  return turn;
}

// The completion; `full` is the strength with the full colour, so that two beside each other share a scale.
function completion(record, full) {
  const body = make("div", "body");
  body.setAttribute("role", "group");
  body.setAttribute("aria-label", `completion of ${record.tokens} tokens, ${methodName(record.method)}; arrow keys walk through it`);
  const breaks = callBreaks(record);
  const boxes = new Map(record.boxes.map((box) => [box[0], box]));
  const nodes = [];
  let home = make("div", "turn");
  let place = home;
  let end = -1;
  let box = null;
  for (let t = 0; t < record.length; t++) {
    if (record.turns && (t === 0 || record.trained(t) !== record.trained(t - 1))) {
      if (home.childNodes.length) body.append(home);
      home = turnNode(record, t);
      place = make("div", "words");
      home.append(place);
    }
    if (breaks.has(t)) (t < end ? box : place).append("\n");
    if (boxes.has(t)) {
      const [start, stop, onset] = boxes.get(t);
      box = boxNode(record, start, stop, onset);
      place.append(box);
      end = stop;
    }
    const node = tokenNode(record, t, full);
    (t < end ? box : place).append(node);
    nodes.push(node);
    if (t === end - 1) close(place, box, node);
  }
  body.append(home);
  if (!record.length) body.append(make("p", "quiet", "no token"));
  if (nodes.length) nodes[0].tabIndex = 0;
  return { body, nodes };
}

// The number behind a segment stands before the line break of its last token.
function close(place, box, last) {
  const broken = last.lastChild.nodeValue === "\n";
  if (broken) last.lastChild.remove();
  const node = make("span", "worth");
  node.dataset.worth = box.dataset.worth; // drawn by the style sheet, so that copied text is the completion's
  node.setAttribute("aria-hidden", "true");
  place.append(node, ...(broken ? ["\n"] : []));
}

// The head of a completion: the method and what was made of its reward.
function facts(record) {
  const line = make("p", "facts");
  const part = (word, value) => {
    const span = make("span");
    span.append(make("b", "", word), ` ${value}`);
    line.append(span);
  };
  const advantage = record.advantage;
  const word = advantage > 0 ? " praise" : advantage < 0 ? " blame" : "";
  part("step", number(record.step));
  part("group", number(record.group));
  part("reward", number(record.reward));
  part("advantage", (advantage > 0 ? "+" : "") + (advantage === null ? "not finite" : number(advantage)) + word);
  part("tokens", number(record.tokens));
  part("segments", number(record.segments));
  if (record.context !== null) part("teacher saw", record.context);
  const kinds = Object.entries(record.tools);
  if (kinds.length) part("tools", kinds.map(([kind, count]) => `${count} ${kind}`).join(", "));
  if (record.truncated) part("cut off", "before it ended");
  if (record.fallback !== null) part("fallback", `kept its GRPO advantage: ${record.fallback}`);
  if (record.note) part("", record.note);
  return line;
}

function legend(record, full) {
  const node = make("p", "legend");
  node.append(make("span", "", `blame ×${number(full)}`), make("span", "ramp"), make("span", "", `praise ×${number(full)}`));
  const one = record.advantage ? "×1 is GRPO's, the completion's advantage" : `×1 is ${number(record.unit)}, the largest credit`;
  const unit = `white is no credit, ${one}; full colour from ×${number(full)} on`;
  const none = `no credit: the advantage is ${record.advantage === null ? "not finite" : "0"}`;
  node.append(make("span", "quiet", record.unit > 0 ? unit : none));
  return node;
}

// The group's solution, with its first difference from the completion marked; null where no solution is known.
function solutionNode(record) {
  if (!record.solution) return null;
  const node = make("section", "solution");
  const [before, at, after] = record.solution;
  const text = make("p", "question");
  if (before) write(text, before);
  const due = make("mark", "");
  write(due, at);
  text.append(due);
  write(text, after || " ");
  node.append(make("h3", "", "Right completion of the group, its first difference marked"), text);
  return node;
}

// The prompt: what the user said, and behind switches all that the student and the teacher were shown.
function promptNodes(record, beside) {
  const head = make("div", "heading");
  head.append(make("h2", "", "Prompt"), ...beside);
  const nodes = [head];
  const text = make("p", "question");
  write(text, record.prompt || "(empty)");
  nodes.push(text);
  const folded = [["all that the student was shown", record.whole], ["what the teacher was shown", record.teacher]];
  for (const [title, shown] of folded.filter(([, shown]) => shown)) {
    const details = make("details");
    const whole = make("p", "question");
    write(whole, shown);
    details.append(make("summary", "", title), whole);
    nodes.push(details);
  }
  return nodes;
}
