// Runs before the first paint, so that a saved theme does not flash. Without one the browser's preference holds.
(() => {
  try {
    const theme = localStorage.getItem("penstock.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* storage may be forbidden */ }
})();
