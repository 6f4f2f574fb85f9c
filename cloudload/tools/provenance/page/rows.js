"use strict";
// Text from the data enters the page only as text nodes (`textContent`, `append`), never as markup.

const PER_LINE = 128, LINE_REM = 12, COLORS = 6, MOST_MATCHES = 10000, MOST_BYTES = 32, NEAR_LINES = 6, NUM_SCROLLS = 6;
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const INVISIBLE_IN_TEXT = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const data = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main"), aside = document.querySelector("aside");
const input = document.querySelector("input"), output = document.querySelector("output");
const isLoose = data.texts.map((text) => /[\udc80-\udcff]/u.test(text));
const special = new Set(data.special);
const rendered = new Set();  // the lines in sight, whose tokens are elements
let showsIds = false, selected = null, matches = [], match = -1;

const make = (tag, name = "", ...content) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...content);
  return element;
};
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// ---------------------------------------------------------------- the data

function decodeNumbers(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Uint32Array(bytes.buffer);
}

/** The index of the last of ascending `starts` that is not above `value`. */
function findLast(starts, value) {
  let low = 0, high = starts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= value) low = middle + 1; else high = middle;
  }
  return low - 1;
}

class Row {
  constructor(values, index) {
    Object.assign(this, values);
    this.index = index;
    this.tokens = decodeNumbers(values.tokens);  // indices into data.texts
    this.starts = this.spans.map((span) => span.place);
    this.maskStarts = this.masked.map((range) => range[0]);
    this.positionStarts = this.positions.map((run) => run[0]);
    this.mended = new Map();
    let before = -1;
    for (const span of this.spans) {
      span.color = span.document % COLORS;
      if (span.color === before) span.color = (before + 1) % COLORS;
      before = span.color;
    }
  }
  /** The span of a token; null for padding, and for the token at the start of a row with row_bos. */
  spanAt(place) { return place < this.length ? this.spans[findLast(this.starts, place)] ?? null : null; }
  isMasked(place) {
    const range = this.masked[findLast(this.maskStarts, place)];
    return range !== undefined && place < range[1];
  }
  /** The ranges of tokens within [start, stop) that are not trained. */
  maskedWithin(start, stop) {
    const found = [];
    for (let index = Math.max(0, findLast(this.maskStarts, start)); index < this.masked.length; index++) {
      const first = Math.max(this.masked[index][0], start), last = Math.min(this.masked[index][1], stop);
      if (this.masked[index][0] >= stop) break;
      if (first < last) found.push([first, last]);
    }
    return found;
  }
  /** The number of tokens that are not trained, without padding. */
  get numMasked() { return this.maskedWithin(0, this.length).reduce((sum, [start, stop]) => sum + stop - start, 0); }
  position(place) {
    const run = this.positions[findLast(this.positionStarts, place)];
    return run[1] + place - run[0];
  }
  /** The text of a token. A character that several tokens share is shown at the last of them. */
  text(place) {
    const token = this.tokens[place];
    if (!isLoose[token]) return data.texts[token];
    if (!this.mended.has(place)) this.mend(place);
    return this.mended.get(place);
  }
  mend(place) {
    const loose = (i) => i >= 0 && i < this.length && isLoose[this.tokens[i]];
    let first = place;
    while (loose(first - 1) && place - first < MOST_BYTES && !this.starts.includes(first)) first--;
    while (loose(first) && first <= place) {
      let stop = first, text = null, bytes = [];
      while (text === null && loose(stop) && stop - first < 8) {
        bytes = bytes.concat(toBytes(data.texts[this.tokens[stop++]]));
        text = decodeBytes(bytes);
      }
      if (text === null) stop = first + 1;
      for (let i = first; i < stop; i++) {
        const last = i === stop - 1 ? text : "";
        this.mended.set(i, text === null ? data.texts[this.tokens[i]] : last);
      }
      first = stop;
    }
  }
}

function toBytes(text) {
  const bytes = [];
  for (const character of text) {
    const code = character.codePointAt(0);
    if (code >= 0xdc80 && code <= 0xdcff) bytes.push(code & 0xff);
    else bytes.push(...new TextEncoder().encode(character));
  }
  return bytes;
}

function decodeBytes(bytes) {
  try { return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes)); }
  catch { return null; }
}

const rows = data.rows.map((values, index) => new Row(values, index));

// ---------------------------------------------------------------- rows

/** Append text to an element, with a mark for each invisible character and, on request, line break. */
function appendVisible(element, text, marksSpace = true) {
  let done = 0;
  for (const { 0: character, index } of text.matchAll(marksSpace ? INVISIBLE : INVISIBLE_IN_TEXT)) {
    if (index > done) element.append(text.slice(done, index));
    done = index + character.length;
    const code = character.codePointAt(0);
    if (character === "\n") element.append(make("i", "", "↵"), "\n");
    else if (character === "\t") element.append(make("i", "", "→"), "\t");
    else if (code >= 0xdc80 && code <= 0xdcff) element.append(make("i", "b", hex(code & 0xff, 2)));
    else element.append(make("i", "b", `U+${hex(code, 4)}`));
  }
  if (done < text.length) element.append(text.slice(done));
}
const hex = (code, digits) => code.toString(16).toUpperCase().padStart(digits, "0");

function nameOf(span) {
  const document_ = data.documents[span.document];
  return document_.id === null ? `${document_.stream} ${document_.sample}` : String(document_.id);
}

function makeTag(row, span) {
  const size = data.documents[span.document].num_tokens;
  const tag = make("span", `tag c${span.color}`);
  appendVisible(tag, nameOf(span).slice(0, 200));
  if (span.start > 0) tag.append(` · from token ${span.start.toLocaleString("en")}`);
  if (span.stop < size) tag.append(" · continues");
  tag.dataset.t = span.place;
  return tag;
}

function renderLine(line) {
  if (line.firstChild) return;
  const row = rowOf(line), first = Number(line.dataset.first);
  const body = make("div"), stop = Math.min(first + PER_LINE, row.length);
  for (let place = first; place < stop; place++) {
    const span = row.spanAt(place), id = data.ids[row.tokens[place]];
    if (span?.place === place) body.append(makeTag(row, span));
    const token = make("span", `t${span ? ` c${span.color}` : ""}${place & 1 ? " o" : ""}`);
    if (row.isMasked(place)) token.classList.add("m");
    if (special.has(row.tokens[place])) token.classList.add("x");
    const text = showsIds ? String(id) : row.text(place);
    if (text) appendVisible(token, text); else token.append(make("i", "", "·"));
    token.dataset.t = place;
    body.append(token);
  }
  const padding = Math.min(first + PER_LINE, row.tokens.length) - Math.max(first, row.length);
  if (padding > 0) {
    const token = make("span", "t pad", `${padding.toLocaleString("en")} padding`);
    token.dataset.t = Math.max(first, row.length);
    body.append(token);
  }
  line.append(body);
  line.style.minHeight = "";
  rendered.add(line);
  markTokens(row, line);
}

function markTokens(row, line) {
  for (const token of line.querySelectorAll(".t")) {
    const place = Number(token.dataset.t);
    token.classList.toggle("sel", selected !== null && selected.row === row.index && selected.place === place);
    token.classList.toggle("hit", match >= 0 && matches[match].row === row.index
      && place >= matches[match].first && place <= matches[match].last);
  }
}

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) renderLine(target);
    else if (target.firstChild) {
      target.style.minHeight = `${target.offsetHeight}px`;
      target.replaceChildren();
      rendered.delete(target);
    }
  }
}, { rootMargin: "1000px 0px" });

/** Fade the parts of a span's bar that are not trained. */
function fade(part, row, span) {
  const stop = span.place + span.stop - span.start, ranges = row.maskedWithin(span.place, stop);
  if (ranges.length === 0) return;
  const at = (place) => `${(100 * (place - span.place)) / (stop - span.place)}%`;
  const stops = ranges.flatMap(([first, last]) =>
    [`var(--c) ${at(first)}`, `var(--faint) ${at(first)}`, `var(--faint) ${at(last)}`, `var(--c) ${at(last)}`]);
  part.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
}

function makeRow(row) {
  const section = make("section");
  section.dataset.row = row.index;
  const padding = row.tokens.length - row.length;
  const trained = row.numMasked ? [`${(row.length - row.numMasked).toLocaleString("en")} trained`] : [];
  const facts = [`row ${row.run_row.toLocaleString("en")} of the run`, count(row.length, "token"), ...trained,
    count(new Set(row.spans.map((span) => span.document)).size, "document"), `${padding.toLocaleString("en")} padding`];
  section.append(make("h2", "", `Step ${row.step.toLocaleString("en")}, row ${row.row} `, make("small", "", facts.join(" · "))));
  const strip = make("div", "strip");
  for (const span of row.spans) {
    const part = make("button", `c${span.color}`);
    part.type = "button";
    part.tabIndex = -1;
    part.style.flexGrow = span.stop - span.start;
    part.dataset.t = span.place;
    part.title = nameOf(span).slice(0, 200);
    part.setAttribute("aria-label", part.title);
    fade(part, row, span);
    strip.append(part);
  }
  if (padding) {
    const part = make("button", "pad");
    Object.assign(part, { type: "button", tabIndex: -1, title: "padding" });
    part.setAttribute("aria-label", "padding");
    part.style.flexGrow = padding;
    part.dataset.t = row.length;
    strip.append(part);
  }
  section.append(strip);
  row.lines = [];
  for (let first = 0; first < row.tokens.length; first += PER_LINE) {
    const line = make("div", "line");
    line.dataset.first = first;
    line.dataset.position = row.position(first);
    line.style.minHeight = `${LINE_REM}rem`;
    row.lines.push(line);
    observer.observe(line);
  }
  section.append(...row.lines);
  section.style.containIntrinsicSize = `auto ${row.lines.length * LINE_REM + 4}rem`;
  return section;
}

const rowOf = (line) => rows[line.parentElement.dataset.row];

function renderAgain() {
  for (const line of rendered) {
    line.replaceChildren();
    renderLine(line);
  }
}

function markAll() {
  for (const line of rendered) markTokens(rowOf(line), line);
}

// ---------------------------------------------------------------- the selected token

function select(row, place, scrolls = true) {
  const mine = selected = { row, place };
  showDetails(rows[row], place);
  const { lines } = rows[row], index = Math.floor(place / PER_LINE);
  if (scrolls) lines.slice(Math.max(0, index - NEAR_LINES), index + NEAR_LINES).forEach(renderLine);
  renderLine(lines[index]);
  markAll();
  const token = lines[index].querySelector(`.t[data-t="${place}"]`) ?? lines[index];
  const bring = (times) => {  // again while the lines around it get their height
    if (selected !== mine) return;
    token.scrollIntoView({ block: "center" });
    if (times > 1) requestAnimationFrame(() => bring(times - 1));
  };
  if (scrolls) bring(NUM_SCROLLS);
  history.replaceState(null, "", `#row=${row}&token=${place}`);
}

function close() {
  aside.hidden = true;
  selected = null;
  markAll();
  history.replaceState(null, "", location.pathname + location.search);
}

function showDetails(row, place) {
  const span = row.spanAt(place), list = make("dl"), token = row.tokens[place];
  const add = (name, value) => {
    const cell = make("dd");
    appendVisible(cell, String(value));
    list.append(make("dt", "", name), cell);
  };
  const text = make("dd");
  appendVisible(text, data.texts[token]);
  list.append(make("dt", "", "token"), text);
  add("token ID", data.ids[token]);
  add("in the row", `${place} of ${row.tokens.length}`);
  add("position ID", row.position(place));
  add("label", row.isMasked(place) ? "-100 (not trained)" : data.ids[token]);
  const title = make("span");
  if (span === null) {
    title.append(place < row.length ? "start of the row" : "padding");
    aside.replaceChildren(withClose(title), list);
  } else {
    const document_ = data.documents[span.document];
    appendVisible(title, nameOf(span));
    if (document_.id !== null) add("id", document_.id);
    add("stream", document_.stream);
    add("shard", document_.shard);
    add("sample", `${document_.sample} of the stream, epoch ${span.epoch}`);
    add("tokens", `${span.start} to ${span.stop - 1} of ${document_.num_tokens}`);
    aside.replaceChildren(withClose(title), list, make("p", "", describeText(document_)), makeText(row, span));
  }
  aside.hidden = false;
  const mark = aside.querySelector("mark");
  aside.scrollTop = 0;
  if (mark) mark.parentElement.scrollTop = mark.offsetTop - mark.parentElement.offsetTop - 40;
}

function withClose(title) {
  const button = make("button", "", "✕");
  button.type = "button";
  button.dataset.do = "close";
  button.setAttribute("aria-label", "Close");
  return make("h3", "", title, button);
}

function describeText(document_) {
  const total = document_.before + document_.text.length + document_.after;
  return document_.before + document_.after
    ? `Text, ${document_.text.length.toLocaleString("en")} of ${count(total, "character")}`
    : `Full text, ${count(total, "character")}`;
}

/** The text of a span's document, with the span marked if its tokens are a part of the text. */
function makeText(row, span) {
  const { text, before, after } = data.documents[span.document], box = make("pre");
  box.dir = "auto";
  box.tabIndex = 0;
  let own = "";
  for (let place = span.place; place < span.place + span.stop - span.start; place++) {
    if (!special.has(row.tokens[place])) own += row.text(place);
  }
  const at = own ? text.indexOf(own) : -1;
  if (before) box.append(make("i", "", `… ${count(before, "character")} before\n`));
  if (at < 0) appendVisible(box, text, false);
  else {
    appendVisible(box, text.slice(0, at), false);
    appendVisible(box.appendChild(make("mark")), own, false);
    appendVisible(box, text.slice(at + own.length), false);
  }
  if (after) box.append(make("i", "", `\n… ${count(after, "more character")}`));
  return box;
}

// ---------------------------------------------------------------- search

function indexText(row) {
  if (row.joined !== undefined) return;
  const parts = [], offsets = new Uint32Array(row.length);
  let offset = 0;
  for (let place = 0; place < row.length; place++) {
    const part = row.text(place).toLowerCase();
    offsets[place] = offset;
    offset += part.length;
    parts.push(part);
  }
  row.joined = parts.join("");
  row.offsets = offsets;
}

function search(query) {
  matches = [];
  match = -1;
  const wanted = query.toLowerCase();
  for (const row of wanted ? rows : []) {
    if (matches.length >= MOST_MATCHES) break;
    const found = [];
    for (const span of row.spans) {
      if (nameOf(span).toLowerCase().includes(wanted)) found.push({ row: row.index, first: span.place, last: span.place });
    }
    indexText(row);
    for (let at = row.joined.indexOf(wanted); at >= 0; at = row.joined.indexOf(wanted, at + wanted.length)) {
      found.push({ row: row.index, first: findLast(row.offsets, at), last: findLast(row.offsets, at + wanted.length - 1) });
      if (found.length >= MOST_MATCHES) break;
    }
    matches.push(...found.sort((one, other) => one.first - other.first));
  }
  step(1);
}

function step(by) {
  if (matches.length) {
    match = match < 0 ? 0 : (match + by + matches.length) % matches.length;
    select(matches[match].row, matches[match].first);
  } else {
    markAll();
  }
  const total = `${matches.length.toLocaleString("en")}${matches.length >= MOST_MATCHES ? "+" : ""}`;
  output.textContent = matches.length ? `${match + 1} of ${total}` : input.value ? "no match" : "";
}

// ---------------------------------------------------------------- keys and clicks

function moveSpan(by) {
  const at = selected ?? { row: 0, place: -1 };
  let row = at.row, index = findLast(rows[row].starts, at.place) + by;
  while (rows[row] && (index < 0 || index >= rows[row].spans.length)) {
    row += by;
    if (rows[row]) index = by > 0 ? 0 : rows[row].spans.length - 1;
  }
  if (rows[row]) select(row, rows[row].starts[index]);
}

function moveRow(by) {
  const row = selected === null ? 0 : selected.row + by;
  if (rows[row]) select(row, 0);
}

function moveToken(by) {
  if (selected === null) { moveRow(0); return; }
  const place = selected.place + by;
  if (rows[selected.row].tokens[place] !== undefined) select(selected.row, place);
}

function toggleHelp() {
  const help = document.getElementById("help");
  help.hidden = !help.hidden;
  document.querySelector("[data-do=help]").setAttribute("aria-expanded", String(!help.hidden));
}

function setTheme(theme) { document.documentElement.dataset.theme = theme; }

const actions = {
  previous: () => step(-1),
  ids: () => {
    showsIds = !showsIds;
    main.classList.toggle("ids", showsIds);
    document.querySelector("[data-do=ids]").setAttribute("aria-pressed", String(showsIds));
    renderAgain();
  },
  theme: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
  help: toggleHelp,
  close,
};
const keys = {
  j: () => moveSpan(1), k: () => moveSpan(-1), "]": () => moveRow(1), "[": () => moveRow(-1),
  ArrowRight: () => moveToken(1), ArrowLeft: () => moveToken(-1),
  i: actions.ids, t: actions.theme, "?": toggleHelp, "/": () => input.select(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (document.activeElement === input) input.blur();
    else if (!aside.hidden) close();
    else if (!document.getElementById("help").hidden) toggleHelp();
    return;
  }
  if (document.activeElement === input) {
    if (event.key === "Enter" && event.shiftKey) { event.preventDefault(); step(-1); }
    return;
  }
  const action = keys[event.key];
  if (action && !(event.key.startsWith("Arrow") && aside.contains(document.activeElement))) {
    event.preventDefault();
    action();
  }
});
document.addEventListener("click", (event) => {
  const action = event.target.closest("[data-do]");
  if (action) { actions[action.dataset.do](); return; }
  const token = event.target.closest("[data-t]");
  if (token) select(Number(token.closest("section").dataset.row), Number(token.dataset.t), token.tagName === "BUTTON");
});
document.getElementById("search").addEventListener("submit", (event) => { event.preventDefault(); step(1); });
let waiting = 0;
input.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => search(input.value), 120);
});

// ---------------------------------------------------------------- start

const dark = matchMedia("(prefers-color-scheme: dark)");
setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
const numTokens = rows.reduce((sum, row) => sum + row.length, 0);
const numTrained = numTokens - rows.reduce((sum, row) => sum + row.numMasked, 0);
document.getElementById("summary").textContent = [count(new Set(rows.map((row) => row.step)).size, "step"),
  count(rows.length, "row"), count(numTokens, "token"),
  ...(numTrained < numTokens ? [`${numTrained.toLocaleString("en")} trained`] : []), count(data.documents.length, "document")].join(" · ");
main.append(...rows.map(makeRow));
const linked = new URLSearchParams(location.hash.slice(1)), linkedRow = Number(linked.get("row") ?? NaN);
const linkedToken = Number(linked.get("token") ?? NaN);
if (rows[linkedRow]?.tokens[linkedToken] !== undefined) select(linkedRow, linkedToken);
document.documentElement.dataset.ready = "yes";
