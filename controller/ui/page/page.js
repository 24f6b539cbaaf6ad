"use strict";
// All that comes from the controller is put into the document as text (textContent), never as markup.

const every = 2000; // ms between two questions
const patience = 10000; // ms that an answer may take
const at = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.hash.slice(1));
let from = Number(asked.get("from")) || 0;
let timer, running;

at("filter").value = asked.get("q") || "";
at("sort").value = asked.get("sort") || "name";
if (!at("sort").value) at("sort").value = "name";

function question() {
  const q = new URLSearchParams();
  if (at("filter").value.trim()) q.set("q", at("filter").value.trim());
  if (at("sort").value !== "name") q.set("sort", at("sort").value);
  if (from) q.set("from", from);
  return q;
}

// ask fetches what is to be seen now. A question that is under way is given up for a newer one.
async function ask() {
  clearTimeout(timer);
  if (running) running.abort();
  const own = running = new AbortController();
  const late = setTimeout(() => own.abort(), patience);
  const q = question();
  history.replaceState(null, "", q.size ? "#" + q : location.pathname);
  try {
    const answer = await fetch("data?" + q, { signal: own.signal, cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.text()).slice(0, 200));
    const view = await answer.json();
    if (own !== running) return;
    show(view);
    say("live · " + clock(new Date()), false);
  } catch (e) {
    if (own !== running) return;
    say("no answer, what is shown is old: " + e.message, true);
  } finally {
    clearTimeout(late);
    if (own === running) {
      running = null;
      if (!document.hidden) timer = setTimeout(ask, every);
    }
  }
}

function say(what, wrong) {
  set(at("live"), what);
  at("live").classList.toggle("wrong", wrong);
}

// set changes a text only if it is another one, so that what a reader has selected stays selected.
function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(kind, style, text) {
  const e = document.createElement(kind);
  if (style) e.className = style;
  if (text !== undefined) e.textContent = text;
  return e;
}

// rows shows items in a table; those that look as before are left alone.
function rows(table, items, cells) {
  const body = table.tBodies[0];
  const labels = [...table.tHead.rows[0].cells].map((c) => c.textContent);
  items.forEach((item, i) => {
    const text = JSON.stringify([item, alone]);
    const old = body.rows[i];
    if (old && old.shows === text) return;
    const row = make("tr");
    row.shows = text;
    cells(row, item).forEach((cell, n) => {
      cell.dataset.label = labels[n];
      row.append(cell);
    });
    if (old) old.replaceWith(row);
    else body.append(row);
  });
  while (body.rows.length > items.length) body.lastElementChild.remove();
  table.hidden = items.length === 0;
}

const two = (n) => String(n).padStart(2, "0");
const clock = (t) => two(t.getHours()) + ":" + two(t.getMinutes()) + ":" + two(t.getSeconds());

// moment is a time as the reader's clock has it, with the date unless that is today's.
function moment(text) {
  const t = new Date(text);
  const date = t.getFullYear() + "-" + two(t.getMonth() + 1) + "-" + two(t.getDate()) + " ";
  return (t.toDateString() === new Date().toDateString() ? "" : date) + clock(t);
}

function bytes(n) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 1000) return (n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)) + " " + unit;
    n /= 1000;
  }
  return n.toFixed(1) + " TB";
}

function filterButton(name) {
  const b = make("button", "name", name);
  b.type = "button";
  b.title = "show this one";
  b.addEventListener("click", () => {
    at("filter").value = name;
    from = 0;
    ask();
  });
  return b;
}

const number = (n, style) => make("td", "number " + (n ? style : "zero"), n.toLocaleString());

function containerCells(row, c) {
  if (c.state === "quarantined") row.className = "urgent";
  const name = make("td", "wide plain");
  name.append(filterButton(c.name), make("span", "id", c.id));
  if (c.problem) name.append(make("span", "note problem", c.problem));
  if (c.uncovered_ms) name.append(make("span", "note problem", "ran " + c.uncovered_ms.toFixed(1) + " ms without its policy"));
  const weak = c.weak || [];
  if (alone) name.append(...weak.map((w) => make("span", "note weak", "weak: " + w)));
  else if (weak.length) {
    const note = make("span", "weak", weak.length + " weak");
    note.title = weak.join("\n");
    name.append(note);
  }
  const list = c.mode === "allowlist" || c.mode === "denylist";
  return [
    name,
    make("td", c.state, c.state),
    make("td", "", c.phase),
    make("td", "", c.mode + (list ? " (" + c.targets.toLocaleString() + ")" : "")),
    make("td", "number", c.generation.toLocaleString()),
    make("td", "", moment(c.since)),
    number(c.minute.allowed, ""),
    number(c.minute.refused, "hot"),
    c.direct === undefined ? make("td", "number zero", "–") : number(Math.round(c.direct * 10) / 10, ""),
    make("td", "number" + (c.minute.bytes_in + c.minute.bytes_out ? "" : " zero"), bytes(c.minute.bytes_in) + " / " + bytes(c.minute.bytes_out)),
  ];
}

function refusalCells(_, r) {
  const who = make("td");
  who.append(filterButton(r.container));
  const host = r.target.includes(":") ? "[" + r.target + "]" : r.target;
  const target = make("td", "wide", r.port && !r.protocol.startsWith("dns-") ? host + ":" + r.port : r.target);
  target.append(" ", make("span", "id", r.protocol));
  const reason = make("td", "wide");
  reason.append(make("span", "fixed", r.reason), r.rule ? ": " + r.rule : "");
  return [
    make("td", "", moment(r.time)),
    who,
    make("td", "", r.phase),
    target,
    reason,
    make("td", "wide decision", r.decision),
  ];
}

function show(v) {
  const states = at("states");
  states.replaceChildren(...["attached", "quarantined", "stopped"].map((state) => {
    const item = make("li", v.states[state] ? state : "zero");
    item.append(make("b", "", (v.states[state] || 0).toLocaleString()), " " + state);
    return item;
  }));
  document.title = v.states.quarantined ? "(" + v.states.quarantined + " quarantined) Sluice" : "Sluice";
  from = v.from;
  alone = v.matched === 1;
  rows(at("containers"), v.rows, containerCells);
  const last = v.from + v.rows.length;
  const part = v.rows.length < v.matched ? (v.from + 1).toLocaleString() + " to " + last.toLocaleString() + " of " : "";
  const filtered = at("filter").value.trim() !== "";
  set(at("shown"), part + v.matched.toLocaleString() + (filtered ? " of " + v.total.toLocaleString() : ""));
  set(at("none"), v.total ? "No container matches the filter." : "No container is under a policy. “sluice run” starts one.");
  at("none").hidden = v.rows.length > 0;
  at("pages").hidden = v.rows.length === v.matched;
  at("back").disabled = v.from === 0;
  at("on").disabled = last >= v.matched;
  page = v.page;
  rows(at("refusals"), v.refusals, refusalCells);
  at("quiet").hidden = v.refusals.length > 0;
  set(at("whose"), filtered ? "of the containers above" : "");
  set(at("footer"), "Sluice " + v.version + (v.missed ? " · records came too fast " + v.missed + " times and were not counted here" : ""));
}

let page = 0;
let alone = false;
let typing;
at("filter").addEventListener("input", () => {
  from = 0;
  clearTimeout(typing);
  typing = setTimeout(ask, 150);
});
at("sort").addEventListener("change", () => { from = 0; ask(); });
at("back").addEventListener("click", () => { from = Math.max(0, from - page); ask(); });
at("on").addEventListener("click", () => { from += page; ask(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
ask();
