// Runs before the first paint: sets the stored theme. Without one the system's applies.
(() => {
  try {
    const theme = localStorage.getItem("tranche-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* storage may be forbidden: use the system's theme */ }
})();
