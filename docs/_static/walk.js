// Step through what a real manager did. Every state was recorded in Python (docs/_ext/walk.py); nothing is computed here.
(function () {
  "use strict";
  const root = document.getElementById("walk");
  const source = document.getElementById("walk-data");
  if (!root || !source) return;
  const steps = JSON.parse(source.textContent).steps;
  let at = 0;

  function make(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // The fixed parts: buttons, slider, caption, the two drawings.
  root.textContent = "";
  const bar = make("div", "walk-bar");
  const back = make("button", "walk-button", "◀ Back");
  const forward = make("button", "walk-button", "Next ▶");
  const slider = make("input", "walk-slider");
  const count = make("span", "walk-count");
  back.type = forward.type = "button";
  slider.type = "range";
  slider.min = 0;
  slider.max = steps.length - 1;
  slider.setAttribute("aria-label", "Step");
  bar.append(back, forward, slider, count);
  const caption = make("div", "walk-caption");
  caption.setAttribute("aria-live", "polite");
  const title = make("h3", "walk-title");
  const code = make("pre", "walk-code");
  const text = make("p", "walk-text");
  caption.append(title, code, text);
  const drawing = make("div", "walk-drawing");
  const tables = make("div", "walk-tables");
  const pool = make("div", "walk-pool");
  drawing.append(tables, pool);
  root.append(bar, caption, drawing);

  const colour = (name) => "walk-owner-" + name;

  function sequenceOf(step, seqId) {
    return step.sequences.find((sequence) => sequence.seq_id === seqId);
  }

  // A page table: one row per page, and the frame that it leads to.
  function drawTable(step, before, sequence) {
    const old = before && sequenceOf(before, sequence.seq_id);
    const box = make("div", "walk-table " + colour(sequence.name));
    const ahead = sequence.reserved ? " + " + sequence.reserved + " reserved" : "";
    box.append(make("div", "walk-name", sequence.name + ": " + sequence.seq_len + " tokens" + ahead));
    const table = make("table");
    const head = make("tr");
    for (const word of ["page", "frame", "flags"]) head.append(make("th", "", word));
    table.append(head);
    sequence.frames.forEach((frame, page) => {
      const row = make("tr", "walk-entry");
      const same = old && old.frames[page] === frame && old.flags[page] === sequence.flags[page];
      if (before && !same) row.classList.add("walk-changed");
      row.dataset.frame = frame;
      row.tabIndex = 0;
      row.append(make("td", "", String(page)), make("td", "", String(frame)), make("td", "walk-flags", sequence.flags[page]));
      for (const event of ["mouseenter", "focus"]) row.addEventListener(event, () => light(frame, true));
      for (const event of ["mouseleave", "blur"]) row.addEventListener(event, () => light(frame, false));
      table.append(row);
    });
    box.append(table);
    return box;
  }

  // A frame: its number, its state, its slots with the words in them, and who holds it.
  function drawFrame(step, before, number) {
    const frame = step.frames[number];
    const size = step.page_size;
    const shared = frame.holders.length > 1;
    const box = make("div", "walk-frame walk-" + frame.state + (shared ? " walk-shared" : ""));
    box.dataset.frame = number;
    const head = make("div", "walk-frame-head");
    head.append(make("span", "walk-number", "frame " + number), make("span", "walk-state", shared ? "shared" : frame.state));
    const slots = make("div", "walk-slots");
    for (let offset = 0; offset < size; offset++) {
      const word = step.words[number * size + offset];
      const slot = make("span", "walk-slot" + (word ? "" : " walk-empty"), word || "\u00a0");
      slot.title = "slot " + (number * size + offset);
      slots.append(slot);
    }
    const owners = make("div", "walk-owners");
    for (const [seqId, page] of frame.holders) {
      const name = sequenceOf(step, seqId).name;
      owners.append(make("span", "walk-owner " + colour(name), name + ", page " + page));
    }
    if (!frame.holders.length) owners.append(make("span", "walk-nobody", frame.state === "cached" ? "kept for a hit" : "nobody"));
    box.append(head, slots, owners);
    if (before) {
      const words = (which) => JSON.stringify(which.words.slice(number * size, (number + 1) * size));
      const old = before.frames[number];
      const same = JSON.stringify(old) === JSON.stringify(frame) && words(before) === words(step);
      if (!same) box.classList.add("walk-changed");
    }
    return box;
  }

  function light(frame, on) {
    for (const node of root.querySelectorAll('[data-frame="' + frame + '"]')) node.classList.toggle("walk-lit", on);
  }

  function show(next) {
    at = Math.max(0, Math.min(steps.length - 1, next));
    const step = steps[at];
    const before = at > 0 ? steps[at - 1] : null;
    root.dataset.step = at;
    slider.value = at;
    slider.setAttribute("aria-valuetext", "step " + (at + 1) + ": " + step.title);
    back.disabled = at === 0;
    forward.disabled = at === steps.length - 1;
    count.textContent = at + 1 + " / " + steps.length;
    title.textContent = step.title;
    code.textContent = step.code;
    text.textContent = step.text;
    tables.replaceChildren(make("div", "walk-heading", "Page tables"));
    for (const sequence of step.sequences) tables.append(drawTable(step, before, sequence));
    if (!step.sequences.length) tables.append(make("div", "walk-nobody", "no sequence"));
    const states = { free: 0, held: 0, cached: 0 };
    for (const frame of step.frames) states[frame.state] += 1;
    const sum = states.free + " free + " + states.held + " held + " + states.cached + " cached = " + step.frames.length;
    const grid = make("div", "walk-grid");
    step.frames.forEach((_, number) => grid.append(drawFrame(step, before, number)));
    pool.replaceChildren(make("div", "walk-heading", "Pool: " + sum), grid);
  }

  back.addEventListener("click", () => show(at - 1));
  forward.addEventListener("click", () => show(at + 1));
  slider.addEventListener("input", () => show(Number(slider.value)));
  root.addEventListener("keydown", (event) => {
    if (event.target === slider || event.altKey || event.ctrlKey || event.metaKey) return;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: steps.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
  show(0);
})();
