// Runs before the first paint, so that the dark theme does not flash white.
(() => {
  const KEY = "plancast.theme";
  const CHOICES = ["auto", "light", "dark"];
  const read = () => {
    try {
      const kept = localStorage.getItem(KEY);
      return CHOICES.includes(kept) ? kept : "auto";
    } catch {
      return "auto"; // storage can be forbidden
    }
  };
  const apply = (choice) => {
    document.documentElement.dataset.theme = choice;
  };
  apply(read());
  window.plancastTheme = {
    current: read,
    next: () => {
      const choice = CHOICES[(CHOICES.indexOf(document.documentElement.dataset.theme) + 1) % CHOICES.length];
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // The choice lasts as long as the page.
      }
      apply(choice);
      return choice;
    },
  };
})();
