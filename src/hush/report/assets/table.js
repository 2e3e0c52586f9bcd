// The table of all secrets: unpacked into typed arrays; only the rows in view are in the document.
const secretTable = (() => {
  const ROW_HEIGHT = 34, SPARE_ROWS = 8, PRINTED_ROWS = 40;  // height in pixels, as in report.css
  const box = document.getElementById("secrets-rows");
  const layout = JSON.parse(document.getElementById("rows-layout").textContent);

  async function unpacked() {
    const text = atob(document.getElementById("rows").textContent);
    const bytes = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const block = await new Response(stream).arrayBuffer();
    const columns = {};
    let offset = 0;
    for (const [name, kind] of layout.columns) {  // little-endian, as the machines of all browsers are
      const Kind = kind === "f8" ? Float64Array : Int32Array;
      columns[name] = new Kind(block, offset, layout.rows);
      offset += columns[name].byteLength;
    }
    const names = JSON.parse(new TextDecoder().decode(new Uint8Array(block, offset)));
    columns.share = columns.posterior.map((posterior, row) => posterior / columns.ceiling[row]);
    return { ...columns, id: names.ids, text: names.texts };
  }

  function show(columns) {
    const find = document.getElementById("find"), only = document.getElementById("only-binding");
    const found = document.getElementById("found"), body = box.querySelector("tbody");
    const heads = [...box.querySelectorAll("th[data-column]")], keys = heads.map(head => head.dataset.column);
    let order = Uint32Array.from({ length: layout.rows }, (_, row) => row);  // all rows, as sorted
    let view = order, printing = false, lowered = null;
    const lower = row => {  // what a search looks through, made when it is needed first: a page may hold a million rows
      lowered ??= columns.id.map((id, row) => (columns.text ? `${id}\n${columns.text[row]}` : id).toLowerCase());
      return lowered[row];
    };

    const written = {
      prior: value => numbers.atLeast(value), posterior: value => numbers.atMost(value, 4, false),
      ceiling: value => numbers.atMost(value), share: value => numbers.atMost(numbers.percent(value), 4, false),
      before: value => numbers.grouped(value), after: value => numbers.atMost(value, 4, false),
    };
    const cell = (key, row) => written[key] ? written[key](columns[key][row]) : columns[key][row];

    const spacers = [0, 1].map(() => {
      const line = document.createElement("tr");
      line.className = "spacer";
      line.setAttribute("aria-hidden", "true");
      line.append(Object.assign(document.createElement("td"), { colSpan: keys.length }));
      return line;
    });
    const lines = [];
    body.replaceChildren(...spacers);

    function line(place) {
      if (!lines[place]) {
        lines[place] = document.createElement("tr");
        lines[place].append(...keys.map(key => document.createElement("td")));
        [...lines[place].cells].forEach((each, column) => { each.dataset.column = keys[column]; });
      }
      return lines[place];
    }

    function render() {
      const height = box.clientHeight || 512;
      const top = printing ? 0 : Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
      const first = top - top % 2;  // even, so that the stripes do not flicker
      const count = printing ? Math.min(PRINTED_ROWS, view.length)
        : Math.min(view.length - first, Math.ceil(height / ROW_HEIGHT) + 2 * SPARE_ROWS);
      const drawn = [];
      for (let place = 0; place < count; place++) {
        const row = view[first + place], target = line(place);
        target.setAttribute("aria-rowindex", first + place + 2);
        keys.forEach((key, column) => {
          const text = cell(key, row);
          target.cells[column].textContent = key === "id" && columns.binding[row] ? `◆ ${text}` : text;
        });
        target.cells[0].title = columns.id[row];
        drawn.push(target);
      }
      spacers[0].firstChild.style.height = `${first * ROW_HEIGHT}px`;
      spacers[1].firstChild.style.height = `${printing ? 0 : (view.length - first - count) * ROW_HEIGHT}px`;
      if (body.children.length !== count + 2 || drawn.some((each, place) => body.children[place + 1] !== each))
        body.replaceChildren(spacers[0], ...drawn, spacers[1]);
    }

    function filter() {
      const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      view = !words.length && !only.checked ? order : order.filter(row =>
        (!only.checked || columns.binding[row]) && words.every(word => lower(row).includes(word)));
      found.textContent = `${numbers.grouped(view.length)} of ${numbers.grouped(layout.rows)} secret${layout.rows === 1 ? "" : "s"}`;
      box.firstElementChild.setAttribute("aria-rowcount", view.length + 1);
      box.scrollTop = 0;
      render();
    }

    const ranks = {};  // of texts, so that every column is sorted by numbers
    function ranked(key) {
      if (typeof columns[key][0] === "number") return columns[key];
      if (!ranks[key]) {
        const sorted = [...columns[key].keys()].sort((a, b) => columns[key][a] < columns[key][b] ? -1 : 1);
        ranks[key] = new Float64Array(sorted.length);
        sorted.forEach((row, rank) => { ranks[key][row] = rank; });
      }
      return ranks[key];
    }

    function sort(head) {
      const key = head.dataset.column, values = ranked(key), was = head.getAttribute("aria-sort");
      const rising = was ? was === "descending" : key === "id" || key === "text";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      order = order.slice().sort((a, b) => (rising ? values[a] - values[b] : values[b] - values[a]) || a - b);
      filter();
    }

    let waiting = 0;
    find.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 60); });
    only.addEventListener("change", filter);
    heads.forEach(head => head.querySelector("button").addEventListener("click", () => sort(head)));
    let asked = false;
    box.addEventListener("scroll", () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => { asked = false; render(); });
    }, { passive: true });
    new ResizeObserver(() => { if (!printing) render(); }).observe(box);
    const note = document.getElementById("rows-note"), original = note.textContent;
    addEventListener("beforeprint", () => {
      printing = true;
      render();
      if (view.length > PRINTED_ROWS)
        note.textContent = `The first ${PRINTED_ROWS} of ${numbers.grouped(view.length)}; open the page to see all. ${original}`;
    });
    addEventListener("afterprint", () => { printing = false; note.textContent = original; render(); });

    box.classList.toggle("texts", Boolean(columns.text));
    heads.find(head => head.dataset.column === "share").setAttribute("aria-sort", "descending");  // as rows come
    filter();
    return id => {
      find.value = id;
      only.checked = false;
      filter();
      find.scrollIntoView({ block: "center" });
    };
  }

  return { open: async () => box ? show(await unpacked()) : () => {} };
})();
