// Opens the page: first the table, then the plots; marks the page as ready, or shows that it could not be drawn.
(async () => {
  try {
    const findSecret = await secretTable.open();
    await plots.drawAll(findSecret);
    addEventListener("beforeprint", () => {
      document.querySelectorAll("section > details").forEach(details => { details.open = true; });
    });
    document.documentElement.dataset.ready = "yes";
  } catch (problem) {
    const note = Object.assign(document.createElement("p"), { className: "banner bad" });
    note.textContent = "This browser could not draw the page; use a current Chromium, Firefox or Safari. The numbers are also in the tables.";
    document.querySelector("main").prepend(note);
    document.documentElement.dataset.ready = "no";
    throw problem;
  }
})();
