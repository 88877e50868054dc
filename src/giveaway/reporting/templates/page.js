"use strict";
// Sorts and filters the table of the most exposed, and links it to the maps: what is selected there is listed here.
(function () {
  const table = document.getElementById("listing");
  const body = table.tBodies[0];
  const heads = Array.from(table.tHead.rows[0].cells);
  const told = document.getElementById("told");
  const search = document.getElementById("search");
  const clear = document.getElementById("clear");
  const rest = document.getElementById("rest"); // opens the rows after the first twenty
  const listed = Array.from(body.rows);
  const added = [];
  const MOST_ADDED = 200;
  let chosen = null; // row numbers selected in a map
  let source = null;

  function say() {
    const all = Array.from(body.rows);
    const shown = all.filter((row) => row.getClientRects().length).length;
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
    if (rest && (words.length || chosen !== null)) rest.open = true;
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

  // What is no number goes last in a column of numbers, whichever way it is sorted.
  function compare(a, b, descending) {
    const counts = [a, b].map((key) => typeof key === "number" && !Number.isNaN(key));
    if (counts[0] !== counts[1]) return counts[0] ? -1 : 1;
    const order = counts[0] ? a - b : String(a).localeCompare(String(b));
    return descending ? -order : order;
  }

  function sort(head) {
    const number = head.dataset.number === "yes";
    const before = head.getAttribute("aria-sort");
    const descending = before === "none" ? number && head.dataset.column !== "rank" : before === "ascending";
    for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    arrange();
    told.textContent = "sorted by " + head.dataset.column + (descending ? ", largest first" : ", smallest first");
  }

  function arrange() {
    const head = heads.find((other) => /scending/.test(other.getAttribute("aria-sort") || ""));
    const place = heads.indexOf(head);
    const descending = head.getAttribute("aria-sort") === "descending";
    const rows = Array.from(body.rows).map((row) => [keyOf(row, place), row]);
    rows.sort((a, b) => compare(a[0], b[0], descending));
    body.append(...rows.map((pair) => pair[1]));
  }

  for (const head of heads) {
    const button = head.querySelector("button");
    if (button) button.addEventListener("click", () => sort(head));
  }
  search.addEventListener("input", filter);

  function forget() {
    for (const row of added.splice(0)) row.remove();
    for (const row of body.rows) row.classList.remove("chosen");
    for (const button of body.querySelectorAll("button.mark")) button.setAttribute("aria-pressed", "false");
  }

  // Rows that are not among the most exposed are made from what the map knows of them; text only, never markup.
  function addRow(place) {
    const data = source.data;
    const row = document.createElement("tr");
    row.dataset.row = data.row[place];
    for (const head of heads) {
      const cell = document.createElement("td");
      const name = head.dataset.column;
      const column = name && head.dataset.ranks === "yes" ? "score" : name;
      cell.className = head.className;
      if (name) cell.dataset.label = name.replaceAll("_", " ");
      if (name === "why") {
        cell.textContent = "further down the ranking: scores.csv has the rest";
      } else if (name && data[column]) {
        const value = data[column][place];
        cell.textContent = typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : String(value);
        if (typeof value === "number") cell.dataset.value = value;
      } else {
        cell.textContent = "–";
      }
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
      arrange();
    }
    filter();
  }

  function mark(row) {
    if (source === null) return;
    const place = Array.from(source.data.row).indexOf(Number(row.dataset.row));
    if (place < 0) return;
    const marked = !row.classList.contains("chosen");
    forget();
    chosen = null;
    row.classList.toggle("chosen", marked);
    row.querySelector("button.mark").setAttribute("aria-pressed", String(marked));
    quiet = true;
    source.selected.indices = marked ? [place] : [];
    quiet = false;
    filter();
  }
  let quiet = false;

  body.addEventListener("click", async (event) => {
    const button = event.target.closest("button.mark");
    if (!button) return;
    fold.open = true;
    await draw();
    mark(button.closest("tr"));
    fold.scrollIntoView({ block: "nearest" });
  });
  if (rest) rest.addEventListener("toggle", say);

  clear.addEventListener("click", () => {
    search.value = "";
    if (source !== null) source.selected.indices = [];
    forget();
    chosen = null;
    filter();
    search.focus();
  });

  // Maps are drawn once they are unfolded: they need their width, and the page opens sooner.
  const item = document.getElementById("maps-data");
  const fold = document.getElementById("map");
  let drawing = null;
  function draw() {
    if (drawing === null && item && typeof Bokeh !== "undefined") {
      drawing = Bokeh.embed.embed_item(JSON.parse(item.textContent)).then(() => {
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
    return drawing;
  }
  if (fold) fold.addEventListener("toggle", draw);
  for (const tool of document.querySelectorAll(".needs-script")) tool.classList.remove("hidden");
  say();
})();
