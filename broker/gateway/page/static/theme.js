// Light, dark, or as the system is. A classic script in the head, so that the first paint has the right colours.
(() => {
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const WHERE = "phi3-theme";
  let theme = "auto";
  try {
    theme = localStorage.getItem(WHERE) in NEXT ? localStorage.getItem(WHERE) : "auto";
  } catch {
    // Storage is closed to this page: the choice lasts until it is left.
  }

  const apply = () => {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme-button");
    if (button) button.textContent = `Theme: ${theme}`;
  };

  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme-button").addEventListener("click", () => {
      theme = NEXT[theme];
      try {
        localStorage.setItem(WHERE, theme);
      } catch {
        // As above.
      }
      apply();
    });
  });
})();
