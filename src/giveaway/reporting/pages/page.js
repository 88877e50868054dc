"use strict";
// Sorts and filters the table of the most exposed, and ties it to the maps: what is selected there is listed here.
(function () {
  const table = document.getElementById("listing");
  const body = table.tBodies[0];
  const heads = Array.from(table.tHead.rows[0].cells);
  const told = document.getElementById("told");
  const search = document.getElementById("search");
  const clear = document.getElementById("clear");
  const listed = Array.from(body.rows);
  const added = [];
  const MOST_ADDED = 200;
  let chosen = null; // row numbers selected in a map
  let source = null;

  function say() {
    const all = Array.from(body.rows);
    const shown = all.filter((row) => !row.classList.contains("hidden")).length;
    let words = shown + " of " + all.length + " rows shown";
    if (chosen !== null) {
      words = chosen.size + " selected in the map, " + shown + " rows shown";
      if (added.length) words += ", " + added.length + " of them from further down the ranking";
      if (chosen.size > shown && !search.value) words += " (the first " + shown + " are listed)";
    }
    told.textContent = words;
    clear.classList.toggle("hidden", chosen === null && !search.value);
  }

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      const fits = words.every((word) => text.includes(word));
      const picked = chosen === null || chosen.has(Number(row.dataset.row));
      row.classList.toggle("hidden", !(fits && picked));
    }
    say();
  }

  function keyOf(row, place) {
    const cell = row.cells[place];
    const value = cell.dataset.value;
    return value === undefined || value === "" ? cell.textContent : Number(value);
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return a.localeCompare(b);
  }

  function sort(head) {
    const place = heads.indexOf(head);
    const number = head.dataset.number === "yes";
    const before = head.getAttribute("aria-sort");
    const descending = before === "none" ? number && head.dataset.column !== "rank" : before === "ascending";
    for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const rows = Array.from(body.rows).map((row) => [keyOf(row, place), row]);
    rows.sort((a, b) => (descending ? compare(b[0], a[0]) : compare(a[0], b[0])));
    body.append(...rows.map((pair) => pair[1]));
    told.textContent = "sorted by " + head.textContent.trim() + (descending ? ", largest first" : ", smallest first");
  }

  for (const head of heads) {
    const button = head.querySelector("button");
    if (button) button.addEventListener("click", () => sort(head));
  }
  search.addEventListener("input", filter);

  function forget() {
    for (const row of added.splice(0)) row.remove();
  }

  // Rows that are not among the most exposed are made from what the map knows of them; text only, never markup.
  function addRow(place) {
    const data = source.data;
    const row = document.createElement("tr");
    row.dataset.row = data.row[place];
    for (const head of heads) {
      const cell = document.createElement("td");
      const name = head.dataset.column;
      const known = { rank: "rank", id: "id", class: "class", percentile: "top", loss: "x" }[name];
      const score = head.dataset.ranks === "yes" ? "score" : known;
      if (score && data[score] && !(name === "loss" && table.dataset.x !== "loss")) {
        let value = data[score][place];
        if (name === "percentile") value = 100 - value;
        cell.textContent = typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : String(value);
        if (typeof value === "number") cell.dataset.value = value;
      } else if (name === "why") {
        cell.textContent = "further down the ranking: scores.csv has the rest";
        cell.className = "text why";
      } else {
        cell.textContent = "–";
      }
      if (head.dataset.number !== "yes" && name !== "why") cell.className = "name";
      row.append(cell);
    }
    body.append(row);
    added.push(row);
  }

  function select(indices) {
    forget();
    if (!indices.length) {
      chosen = null;
    } else {
      const rows = source.data.row;
      chosen = new Set(Array.from(indices, (place) => Number(rows[place])));
      const here = new Set(listed.map((row) => Number(row.dataset.row)));
      const more = Array.from(indices).filter((place) => !here.has(Number(rows[place])));
      more.sort((a, b) => source.data.rank[a] - source.data.rank[b]);
      for (const place of more.slice(0, MOST_ADDED)) addRow(place);
    }
    filter();
  }

  function mark(row) {
    if (source === null) return;
    const place = Array.from(source.data.row).indexOf(Number(row.dataset.row));
    if (place < 0) return;
    const marked = row.classList.toggle("chosen");
    for (const other of body.rows) if (other !== row) other.classList.remove("chosen");
    const button = row.querySelector("button.mark");
    for (const other of body.querySelectorAll("button.mark")) other.setAttribute("aria-pressed", "false");
    if (button) button.setAttribute("aria-pressed", marked ? "true" : "false");
    quiet = true;
    source.selected.indices = marked ? [place] : [];
    quiet = false;
  }
  let quiet = false;

  body.addEventListener("click", (event) => {
    const button = event.target.closest("button.mark");
    if (button) mark(button.closest("tr"));
  });

  clear.addEventListener("click", () => {
    search.value = "";
    for (const row of body.rows) row.classList.remove("chosen");
    if (source !== null) source.selected.indices = [];
    forget();
    chosen = null;
    filter();
    search.focus();
  });

  const item = document.getElementById("maps-data");
  if (item && typeof Bokeh !== "undefined") {
    document.documentElement.classList.add("maps");
    Bokeh.embed.embed_item(JSON.parse(item.textContent)).then((views) => {
      const found = Bokeh.documents.map((doc) => doc.get_model_by_name("cloud")).filter(Boolean);
      if (!found.length) return;
      source = found[0];
      source.selected.properties.indices.change.connect(() => {
        if (!quiet) select(source.selected.indices);
      });
      document.documentElement.dataset.maps = "ready";
      window.giveawaySource = source;
    });
  }
  for (const tool of document.querySelectorAll(".needs-script")) tool.classList.remove("hidden");
  say();
})();
