// The plots: drawn one after another, in the colours of the theme, and usable with the keyboard.
const plots = (() => {
  const THEMES = {
    light: { paper: "#ffffff", ink: "#1d2127", muted: "#5c6470", grid: "#e3e6ea", green: "#009E73", blue: "#0072B2",
             red: "#D55E00", orange: "#E69F00", purple: "#AA4499" },
    dark: { paper: "#15181d", ink: "#e7eaee", muted: "#a4adb9", grid: "#2c323b", green: "#2CC295", blue: "#56B4E9",
            red: "#F58742", orange: "#F5B82E", purple: "#DD8FC4" },
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const specs = JSON.parse(document.getElementById("plots").textContent);
  const places = [...document.querySelectorAll("[data-plot]")];
  let printing = false;

  const theme = () => THEMES[dark.matches && !printing ? "dark" : "light"];

  // The same data with every @colour replaced; fields that may hold text of others are left unchanged.
  const TEXT_FIELDS = new Set(["x", "y", "name", "text", "hovertext", "customdata", "title"]);
  function coloured(value, colours) {
    if (typeof value === "string") return value[0] === "@" ? colours[value.slice(1)] ?? value : value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(part => coloured(part, colours));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, TEXT_FIELDS.has(key) ? part : coloured(part, colours)]));
    return value;
  }

  // Round numbers as ticks of a logarithmic axis, in plain digits where they are short.
  function ticks([low, high], room) {
    const span = high - low, found = [];
    const finest = [[1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]];
    const steps = finest.find(each => each.length * span <= room) ?? [1];
    const every = Math.max(1, Math.ceil(span / room));
    for (let power = Math.floor(low); power <= high; power++)
      if (steps.length > 1 || power % every === 0)
        for (const step of steps) found.push([step, power]);
    const shown = found.filter(([step, power]) => {
      const height = power + Math.log10(step);
      return height >= low - 1e-9 && height <= high + 1e-9;
    });
    const plainly = low >= -4.01 && high <= 6.01;
    return {
      tickmode: "array", tickvals: shown.map(([step, power]) => Number(`${step}e${power}`)),
      ticktext: shown.map(([step, power]) => plainly ? String(Number(`${step}e${power}`))
        : `${step === 1 ? "" : `${step}·`}10<sup>${power}</sup>`.replace("-", "−")),
    };
  }

  // The range of an axis: from the smallest to the largest number, with a margin.
  function extent(data, letter) {
    let low = Infinity, high = -Infinity;
    for (const trace of data) for (const value of trace[letter])
      if (value > 0) { low = Math.min(low, value); high = Math.max(high, value); }
    if (low > high) return [0, 1];
    [low, high] = [Math.log10(low), Math.log10(high)];
    const room = Math.max(0.04 * (high - low), 0.05);
    return [low - room, high + room];
  }

  const roomFor = (letter, spec, width) => letter === "x" ? (width - 80) / 62 : spec.height / 42;

  function axis(letter, spec, given, colours, width) {
    const log = given.type === "log", range = log ? given.range ?? extent(spec.data, letter) : given.range;
    return { gridcolor: colours.grid, zeroline: false, linecolor: colours.muted, tickcolor: colours.muted,
             automargin: true, ...given, ...(range ? { range } : {}),
             ...(log ? ticks(range, roomFor(letter, spec, width)) : {}),
             title: { ...given.title, standoff: 8, font: { size: 13 } } };
  }

  function layout(spec, colours, width) {
    const narrow = width < 520, given = coloured(spec.layout, colours), dense = narrow || matchMedia("(pointer: coarse)").matches;
    return {
      ...given, width, height: spec.height, autosize: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11.5 : 13, color: colours.ink },
      margin: { l: narrow ? 44 : 60, r: 16, t: 12, b: 44, ...given.margin },
      xaxis: axis("x", spec, given.xaxis, colours, width), yaxis: axis("y", spec, given.yaxis, colours, width),
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: narrow ? 11 : 12.5 } },
      hovermode: "closest", dragmode: dense ? false : "zoom",
      hoverlabel: { bgcolor: colours.paper, bordercolor: colours.muted, font: { color: colours.ink, size: 13 }, align: "left", namelength: 0 },
    };
  }

  function draw(place) {
    const spec = specs[place.dataset.plot], colours = theme();
    const width = printing ? 680 : place.clientWidth;
    place.drawnWidth = width;
    return Plotly.react(place, coloured(spec.data, colours), layout(spec, colours, width), {
      displaylogo: false, displayModeBar: false, scrollZoom: false, doubleClick: "reset",
    });
  }

  const plain = text => text.replace(/<br>/g, ", ").replace(/<[^>]*>/g, "").replace(/&(lt|gt|amp|quot|#x27);/g,
    (_, name) => ({ lt: "<", gt: ">", amp: "&", quot: '"', "#x27": "'" })[name]);

  // Arrow keys step from point to point; the line below the plot shows what hovering would show.
  function steerable(place, chosen) {
    const spec = specs[place.dataset.plot], readout = place.parentElement.querySelector(".readout");
    const points = spec.data.flatMap((trace, curve) =>
      trace.hoverinfo === "skip" ? [] : trace.x.map((_, point) => [curve, point]));
    let at = -1;
    const words = (curve, point) => (spec.data[curve].hovertext ?? spec.data[curve].text)[point];
    const choose = (curve, point) => { const data = spec.data[curve].customdata; if (data) chosen(data[point]); };
    place.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Enter" && at >= 0) return choose(...points[at]);
      if (event.key === "Escape") { at = -1; readout.textContent = ""; return Plotly.Fx.unhover(place); }
      if (!points.length || !(step || event.key === "Home" || event.key === "End")) return;
      event.preventDefault();
      at = step ? (at + step + points.length) % points.length : event.key === "Home" ? 0 : points.length - 1;
      const [curveNumber, pointNumber] = points[at];
      Plotly.Fx.hover(place, [{ curveNumber, pointNumber }]);
      readout.textContent = plain(words(curveNumber, pointNumber));
    });
    place.addEventListener("blur", () => { readout.textContent = ""; Plotly.Fx.unhover(place); });
    place.on("plotly_relayout", change => {  // after zooming, choose new ticks
      const found = {};
      for (const letter of ["x", "y"]) {
        const axis = place.layout[`${letter}axis`];
        if (axis.type !== "log" || !Object.keys(change).some(key => key.startsWith(`${letter}axis.range`))) continue;
        const fresh = ticks(axis.range, roomFor(letter, spec, place.clientWidth));
        for (const key of ["tickvals", "ticktext"]) found[`${letter}axis.${key}`] = fresh[key];
      }
      if (Object.keys(found).length) Plotly.relayout(place, found);
    });
    place.on("plotly_click", event => choose(event.points[0].curveNumber, event.points[0].pointNumber));
  }

  const pause = () => new Promise(resume => setTimeout(resume));

  async function drawAll(chosen) {
    for (const place of places) {
      await draw(place);
      steerable(place, chosen);
      await pause();  // keeps the page responsive
    }
    dark.addEventListener("change", () => places.forEach(draw));
    const resized = new ResizeObserver(entries => entries.forEach(({ target }) => {
      if (!printing && target.clientWidth && target.clientWidth !== target.drawnWidth) draw(target);
    }));
    places.forEach(place => resized.observe(place));
    addEventListener("beforeprint", () => { printing = true; places.forEach(draw); });
    addEventListener("afterprint", () => { printing = false; places.forEach(draw); });
  }

  return { drawAll };
})();
